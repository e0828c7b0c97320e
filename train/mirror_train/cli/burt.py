"""The command `mirror-rt train burt`."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError
from mirror_train.compute.launch import check_one_process, is_first_process
from mirror_train.data.burt_tasks import BurtTasks
from mirror_train.systems.burt import BurtRecipe
from mirror_train.systems.options import Training, print_result, run_options
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from mirror_rt.evaluation.suites import EvaluationSet


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The pairs of each objective."""

    nli: Annotated[
        tuple[Path, ...],
        Help("SNLI, MultiNLI: the published .jsonl or .txt, or a TSV of premise, hypothesis, label",
             many=True),
    ] = ()  # fmt: skip
    ppdb: Annotated[
        tuple[Path, ...],
        Help("PPDB 2.0, plain or .gz; equally many pairs of each relation are drawn", many=True),
    ] = ()
    paraphrases: Annotated[
        tuple[Path, ...],
        Help("more pairs for pi: two columns (TSV, or text||text), or Quora's table (.csv)",
             many=True),
    ] = ()  # fmt: skip
    per_relation: Annotated[
        int | None, Help("pairs of each relation of --ppdb (default: as many as the rarest has)")
    ] = None
    top: Annotated[
        int | None, Help("the first N rows of --nli and --paraphrases alone")
    ] = None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Ablation:
    """The rows of the paper's table 4 to train, and the sets to evaluate them on."""

    ablation: Annotated[
        Literal["objectives", "pooling", "concatenation", "negatives", "all"] | None,
        Help("train each row and write ablation.md and ablation.json into --out; the same command "
             "goes on after an interruption"),
    ] = None  # fmt: skip
    evaluate: Annotated[
        tuple[str, ...],
        Help("scored pairs to evaluate the rows on (Spearman's rho), or a folder of a year of STS; "
             "with three files, by a regression on the vectors that is trained on the first, and "
             "ends where it is best on the second", "NAME=[TRAIN.tsv,DEV.tsv,]FILE.tsv|FOLDER"),
    ] = ()  # fmt: skip
    semeval: Annotated[
        tuple[Path, ...],
        Help("fine-tune each row on the first file, and test it on the second: SemEval-2013 5(a), "
             "a word, a phrase and a label in a line, without a header", "FILE", many=True),
    ] = ()  # fmt: skip
    static: Annotated[
        tuple[str, ...],
        Help("word vectors (.vec, .txt, word2vec's .bin) as further rows", "LABEL=FILE", many=True),
    ] = ()
    seeds: Annotated[int, Help("seeds of each row; three and more give intervals")] = 1
    ppdb_test: Annotated[
        Path | None,
        Help(
            "PPDB: its phrases with the probability of equivalence, to evaluate on; its pairs are "
            "left out of the training"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrainBurt(Training):
    r"""Train an encoder on pairs, each side encoded by itself (BURT, Li and Zhao 2020).

    The objectives are nli (entailment, neutral or contradiction, of sentences), pi (paraphrases
    against random pairs, of phrases and words) and ptc (equivalence, entailment or independent, of
    phrases and words). Batches of the three come in turn, those of sentences every second time.

    The folder is exported like any other, with the heads of the three (see 'mirror-rt predict').
    Ctrl-C writes a checkpoint; with --ablation, it leaves the runs that are finished.

    Examples:
        mirror-rt train burt --nli snli_1.0_train.jsonl --ppdb ppdb-2.0-s-phrasal.gz --out tuned
        mirror-rt train burt --nli snli-dev.tsv --paraphrases quora-dev.csv --out tuned --steps 500
        mirror-rt train burt --nli train.tsv --ppdb train.gz --ablation pooling \
            --evaluate sts=test.tsv --ppdb-test test.gz --out ablation --steps 2000
    """

    data: Annotated[_Data, Group("data")]
    config: Annotated[Given[TrainConfig], run_options("precision")]
    recipe: Annotated[Given[BurtRecipe], Group("hyper-parameters")]
    rows: Annotated[_Ablation, Group("ablations (table 4 of the paper)")]

    def run(self) -> int:
        from mirror_train.experiments.burt_ablation import read_sets, semeval_set
        from mirror_train.systems import train

        recipe, rows = self.recipe.make(), self.rows
        config = self.settings("burt", self.config, recipe)
        sets = []
        if rows.ablation is not None:
            sets = read_sets(rows.evaluate, rows.ppdb_test)
            sets += [semeval_set(rows.semeval, config)] if rows.semeval else []
            if not sets:
                raise ConfigError(
                    "an ablation needs sets to evaluate on: pass --evaluate NAME=FILE.tsv"
                )
        elif dataclasses.replace(rows, ablation=None) != _Ablation():
            raise ConfigError(
                "--evaluate, --ppdb-test, --semeval, --static and --seeds go with --ablation; a "
                "tuned folder is evaluated by 'mirror-rt evaluate'"
            )
        tasks = BurtTasks.load(**asdict(self.data), seed=config.seed, without=rows.ppdb_test)
        for name in tasks.objectives if is_first_process() else ():
            found = tasks.of(name)
            print(f"{name}: {len(found)} pairs ({found.source}; {found.left_out} lines left out)")
        if rows.ablation is not None:
            check_one_process("--ablation")
            if config.resume:
                raise ConfigError("--ablation goes on by the same command, without --resume")
            return _run_ablation(tasks, config, rows, sets)
        print_result(train("burt", tasks, config))
        return 0


def _run_ablation(
    tasks: BurtTasks, config: TrainConfig, rows: _Ablation, sets: list[EvaluationSet]
) -> int:
    from mirror_train.cli.study_run import run_and_report
    from mirror_train.experiments.burt_ablation import ABLATIONS, plan_ablations
    from mirror_train.experiments.study import StudyConfig

    names = list(ABLATIONS) if rows.ablation in (None, "all") else [rows.ablation]
    study = plan_ablations(names, tasks, config, sets, rows.static)
    settings = StudyConfig(seeds=rows.seeds, precision=config.precision, **config.run_options())
    return run_and_report(study.name, config.out, lambda: (study, settings, None))
