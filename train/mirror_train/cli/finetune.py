"""The command `mirror-rt finetune`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mirror_rt.cli.parsing.options import Given, Group
from mirror_train.cli.multitask import print_metrics, print_rows
from mirror_train.cli.training_options import RUN, Training
from mirror_train.compute.launch import is_first_process
from mirror_train.pairs.multitask_data import MultitaskData, TaskFiles
from mirror_train.recipes.systems import FinetuneRecipe
from mirror_train.training.run_config import FinetuneConfig


@dataclass(frozen=True, kw_only=True)
class Finetune(Training):
    """Fine-tune an encoder with a decoding layer on a file of labelled texts or pairs.

    The layer is a softmax over classes, a regression of values, or a cosine of projected vectors;
    --frozen trains it alone. The folder is exported like any other, and the layer goes with it:
    see 'mirror-rt predict'. Ctrl-C writes a checkpoint.

    Examples:
        mirror-rt finetune --data train.tsv --dev dev.tsv --test test.tsv --out tuned
        mirror-rt finetune bert --layer regression --frozen --data sts-train.tsv --out tuned
        mirror-rt finetune --data lines.tsv --fields 1,2 --label-field 3 --out tuned
    """

    data: Annotated[TaskFiles, Group("data")]
    config: Annotated[Given[FinetuneConfig], RUN]
    recipe: Annotated[Given[FinetuneRecipe], Group("hyper-parameters")]

    def run(self) -> None:
        from mirror_train.pairs.multitask import finetune

        recipe = self.recipe.make()
        config = self.config.make(recipe=recipe, show_progress_bar=not self.quiet)
        data = self.data.load(layer=recipe.layer, seed=config.seed)
        print_rows(MultitaskData({config.task: data}))
        report = finetune(data, config)
        if is_first_process():
            print_metrics(report)
