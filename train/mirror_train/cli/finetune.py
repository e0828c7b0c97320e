"""The command `mirror-rt finetune`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_train.cli.multitask import print_metrics, print_rows
from mirror_train.cli.training_options import RUN, Training
from mirror_train.compute.launch import is_first_process
from mirror_train.pairs.multitask_data import MultitaskData, load_task_data
from mirror_train.recipes.systems import FinetuneRecipe
from mirror_train.training.run_config import FinetuneConfig


def _names(given: str | None) -> tuple[str, ...]:
    return () if given is None else tuple(name.strip() for name in given.split(","))


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Which rows to train on."""

    data: Annotated[Path, Help("a .csv or .tsv with a header, texts or pairs, and labels", "FILE")]
    dev: Annotated[
        Path | None,
        Help("rows to choose the weights by (default: a tenth of --data, held out)", "FILE"),
    ] = None
    test: Annotated[Path | None, Help("rows to test them on at the end", "FILE")] = None
    fields: Annotated[
        str | None,
        Help("column of the text, or of the two texts (default: text, sentence, sentence1 and "
             "sentence2, and other usual names)", "NAME[,NAME]"),
    ] = None  # fmt: skip
    label_field: Annotated[
        str | None,
        Help("column of the label (default: label, score and other usual names). For files without "
             "a header, --fields and --label-field count columns from 1", "NAME"),
    ] = None  # fmt: skip
    labels: Annotated[
        str | None,
        Help("the classes in order; for a cosine first that of unrelated pairs", "NAME,NAME,..."),
    ] = None
    top: Annotated[int | None, Help("the first N rows of every file alone")] = None


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

    data: Annotated[_Data, Group("data")]
    config: Annotated[Given[FinetuneConfig], RUN]
    recipe: Annotated[Given[FinetuneRecipe], Group("hyper-parameters")]

    def run(self) -> None:
        from mirror_train.pairs.multitask import finetune

        own, recipe = self.data, self.recipe.make()
        config = self.config.make(recipe=recipe, show_progress_bar=not self.quiet)
        data = load_task_data(
            own.data,
            dev=own.dev,
            test=own.test,
            layer=recipe.layer,
            fields=_names(own.fields),
            label_field=own.label_field,
            labels=_names(own.labels),
            top=own.top,
            seed=config.seed,
        )
        print_rows(MultitaskData({config.task: data}))
        report = finetune(data, config)
        if is_first_process():
            print_metrics(report)
