"""The ablations of BURT as data (section 5, table 4), and the rows of their study."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError
from mirror_rt.evaluation import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.suites import EvaluationSet
from mirror_rt.evaluation.suites.base import scored_set
from mirror_rt.evaluation.suites.sentences import year_set
from mirror_train.data.ppdb import read_ppdb
from mirror_train.experiments.study import Row, Study, static_rows
from mirror_train.experiments.trained_sets import classify, regression_set, supervised_set
from mirror_train.recipes.recipe import CONCATENATIONS
from mirror_train.systems import BurtTasks, FinetuneRecipe, TaskData, TaskFiles, train
from mirror_train.training.run_config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

_SEMEVAL = "semeval"
_POOLINGS: tuple[Pooling, ...] = ("cls", "max", "mean")
# The changes of the recipe for each row of each ablation.
ABLATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "objectives": {
        "NLI": {"objectives": ("nli",)},
        "NLI+PI": {"objectives": ("nli", "pi")},
        "NLI+PTC": {"objectives": ("nli", "ptc")},
        "NLI+PI+PTC": {"objectives": ("nli", "pi", "ptc")},
    },
    "pooling": {name.upper(): {"pooling": name} for name in _POOLINGS},
    "concatenation": {f"[{name}]": {"concatenation": name} for name in CONCATENATIONS},
    "negatives": {f"k = {k}": {"negatives": k} for k in (1, 3, 5, 7)},
}


def read_sets(given: Sequence[str], ppdb: Path | None) -> list[EvaluationSet]:
    """Read the sets that rows are evaluated on: NAME=FILE.tsv, and the phrases of a file of PPDB.

    NAME=FOLDER takes the subsets of a year of STS, as SentEval has them, and gives both usual
    figures. NAME=TRAIN.tsv,DEV.tsv,FILE.tsv is measured by a regression that is trained on the
    first file; the second says when it ends. A set that is not of that form, a name given twice,
    and a file that cannot be used are errors, so that they end the command before any training.
    """
    sets: dict[str, EvaluationSet] = {}
    for entry in given:
        name, separator, path = entry.partition("=")
        if not separator or not name or not path or name in sets:
            raise ConfigError(f"--evaluate {entry}: expected NAME=FILE.tsv, each name once")
        *trained, test = map(Path, path.split(","))
        if len(trained) not in (0, 2):
            raise ConfigError(f"--evaluate {entry}: expected NAME=TRAIN.tsv,DEV.tsv,FILE.tsv")
        if test.is_dir() and not trained:
            sets[name] = year_set(name, test)
            continue
        one = _set(name, test, read_scored_pairs(test))
        sets[name] = regression_set(one, *trained) if trained else one
    if ppdb is not None:
        sets["phrases"] = _set("phrases", ppdb, read_ppdb(ppdb).phrase_similarity())
    return list(sets.values())


def _set(name: str, path: Path, pairs: ScoredPairs) -> EvaluationSet:
    return scored_set("pairs", name, path, (None,), lambda _: pairs)


def semeval_set(files: Sequence[Path], config: TrainConfig) -> EvaluationSet:
    """Return SemEval-2013 5(a), on whose training rows a model is "first fine-tuned" (section 4.2).

    Both files have a word, a phrase and a label in each line, without a header.
    """
    if len(files) != 2:
        raise ConfigError("--semeval takes two files: to train on, and to test on")
    train, test = files
    read = TaskFiles(data=train, test=test, fields="1,2", label_field="3").load(seed=config.seed)
    fine_tune = partial(_fine_tune, read, config)
    frozen = partial(classify, read, f"{_SEMEVAL} accuracy")
    metrics = {_SEMEVAL: "accuracy"}
    return supervised_set(_SEMEVAL, fine_tune, metrics, config, [train, test], frozen)


def _fine_tune(
    data: TaskData, config: TrainConfig, run: RunConfig, pooling: Pooling | Literal["auto"]
) -> TuneReport:
    options = {"task": _SEMEVAL, "precision": config.precision} | run.run_options()
    config = TrainConfig(recipe=FinetuneRecipe(pooling=pooling), **options)
    return train("finetune", data, config)


def plan_ablations(
    names: Sequence[str],
    tasks: BurtTasks,
    config: TrainConfig,
    sets: list[EvaluationSet],
    static: Sequence[str] = (),
) -> Study:
    """Return the study of some of `ABLATIONS`; rows without data (such as PPDB) are left out.

    The ablation of pooling begins with the base model as it is (BERT in Tables 2 and 3), and every
    one with the word vectors of `static`, as `static_rows` takes them.
    """
    untuned = [Row(f"untuned, {one.upper()}", pooling=one) for one in _POOLINGS]
    rows, left_out = [*static_rows(static), *(untuned if "pooling" in names else [])], {}
    data: Mapping[str, str] = {name: tasks.of(name).sha256() for name in tasks.objectives}
    for name in names:
        for label, changes in ABLATIONS[name].items():
            recipe = dataclasses.replace(config.recipe, **changes)
            objectives = recipe.objectives or tasks.objectives
            if lacking := [one for one in objectives if one not in data]:
                left_out[f"{name}, {label}"] = f"no data for {', '.join(lacking)}"
                continue
            fields = dataclasses.asdict(recipe) | {"objectives": list(objectives)}
            identity = {"recipe": fields, "data": data}
            train = partial(_train, tasks, dataclasses.replace(config, recipe=recipe))
            rows.append(Row(f"{name}, {label}", train, identity))
    return Study(
        name="ablation",
        title="the parts of BURT, one by one",
        source="BURT (Li and Zhao 2020), Table 4",
        rows=rows,
        sets=sets,
        average=True,
        left_out=left_out,
        about={"recipe": dataclasses.asdict(config.recipe)},
    )


def _train(tasks: BurtTasks, config: TrainConfig, run: RunConfig) -> TuneReport:
    return train("burt", tasks, dataclasses.replace(config, **run.run_options()))
