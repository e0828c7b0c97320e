"""Run the ablations of BURT (section 5, table 4), one run a row, and keep each result at once."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mirror_rt.errors import ConfigError
from mirror_rt.evaluation import ScoredPairs, evaluate_similarity, read_scored_pairs
from mirror_train.experiments.kept_results import (
    KeptResult,
    run_setting,
    to_markdown,
    write_results,
)
from mirror_train.model.pretrained import load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.pairs.burt import tune_burt
from mirror_train.pairs.burt_data import BurtTasks
from mirror_train.pairs.ppdb import read_ppdb
from mirror_train.pairs.recipe import CONCATENATIONS, BurtConfig, BurtRecipe

# The changes of the recipe for each row of each ablation.
ABLATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "objectives": {
        "NLI": {"objectives": ("nli",)},
        "NLI+PI": {"objectives": ("nli", "pi")},
        "NLI+PTC": {"objectives": ("nli", "ptc")},
        "NLI+PI+PTC": {"objectives": ("nli", "pi", "ptc")},
    },
    "pooling": {name.upper(): {"pooling": name} for name in ("cls", "max", "mean")},
    "concatenation": {f"[{name}]": {"concatenation": name} for name in CONCATENATIONS},
    "negatives": {f"k = {k}": {"negatives": k} for k in (1, 3, 5, 7)},
}


def read_sets(given: Sequence[str], ppdb: Path | None) -> dict[str, ScoredPairs]:
    """Read the sets that rows are evaluated on: NAME=FILE.tsv, and the phrases of a file of PPDB.

    Raises:
        ConfigError: a set is not of that form, a name is given twice, or there is no set.
        DataError: a file cannot be used.
    """
    sets = {}
    for entry in given:
        name, separator, path = entry.partition("=")
        if not separator or not name or not path or name in sets:
            raise ConfigError(f"--evaluate {entry}: expected NAME=FILE.tsv, each name once")
        sets[name] = read_scored_pairs(Path(path))
    if ppdb is not None:
        sets["phrases"] = read_ppdb(ppdb).phrase_similarity()
    if not sets:
        raise ConfigError("an ablation needs sets to evaluate on: pass --evaluate NAME=FILE.tsv")
    return sets


def run_ablations(
    names: Sequence[str],
    tasks: BurtTasks,
    config: BurtConfig,
    sets: Mapping[str, ScoredPairs],
    *,
    on_row: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train and evaluate the rows of some of `ABLATIONS`, and write their table.

    A row's result is kept in `config.out`/runs under a hash of everything that decides it, so that
    finished rows are not run again, and a row of several ablations runs once. Rows without data
    (such as those with `ptc` if there is no PPDB) are in the table without figures. `on_row` is
    called after every row with a line about it. The exceptions are those of `tune_burt`.

    Returns:
        The path of the table, `config.out`/ablation.md; ablation.json is beside it.
    """
    common = _identity(tasks, config, sets)
    rows: list[dict[str, Any]] = []
    for name in names:
        for label, changes in ABLATIONS[name].items():
            recipe = dataclasses.replace(config.recipe, **changes)
            wanted = recipe.objectives or tasks.objectives
            scores: dict[str, float] | None = None
            if set(wanted) <= set(tasks.objectives):
                scores = _run(tasks, config, recipe, sets, common)
            rows.append({"ablation": name, "row": label, "scores": scores})
            on_row(f"{name}, {label}: {_line(scores)}")
    values = {"setting": common, "rows": rows}
    return write_results(config.out, "ablation", _table(rows, list(sets)), values)[0]


def _run(
    tasks: BurtTasks,
    config: BurtConfig,
    recipe: BurtRecipe,
    sets: Mapping[str, ScoredPairs],
    common: dict[str, Any],
) -> dict[str, float]:
    """Return Spearman's rho on every set, from a new run or from its kept result."""
    objectives = recipe.objectives or tasks.objectives
    fields = dataclasses.asdict(recipe) | {"objectives": list(objectives)}
    identity = common | {"recipe": fields}
    kept = KeptResult(config.out / "runs", identity)
    if (found := kept.load(_scores)) is not None:
        return found
    work = config.out / "work"
    shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed
    try:
        tune_burt(tasks, dataclasses.replace(config, recipe=recipe, out=work, overwrite=True))
        encoder = TorchEncoder.load(work, device=config.device)
        scores = {name: evaluate_similarity(encoder, pairs) for name, pairs in sets.items()}
    finally:
        shutil.rmtree(work, ignore_errors=True)
    kept.save({"scores": scores})
    return scores


def _scores(found: dict[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in found["scores"].items()}


def _identity(
    tasks: BurtTasks, config: BurtConfig, sets: Mapping[str, ScoredPairs]
) -> dict[str, Any]:
    base = load_pretrained(config.model, **config.load_options())
    setting = run_setting(base.weights_sha256(), precision=config.precision, device=config.device)
    return setting | {
        "data": {name: tasks.of(name).sha256() for name in tasks.objectives},
        "sets": {
            name: hashlib.sha256(
                repr((pairs.first, pairs.second, pairs.scores.tolist())).encode()
            ).hexdigest()
            for name, pairs in sets.items()
        },
        "seed": config.seed,
    }


def _line(scores: dict[str, float] | None) -> str:
    if scores is None:
        return "no data"
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _table(rows: list[dict[str, Any]], sets: list[str]) -> str:
    lines = []
    for row in rows:
        scores = row["scores"] or {}
        figures = [f"{100 * scores[name]:.1f}" if name in scores else "no data" for name in sets]
        lines.append([row["ablation"], row["row"].replace("|", "\\|"), *figures])
    table = to_markdown(["ablation", "row", *sets], lines)
    return f"{table}\nSpearman's rho, in percent.\n"
