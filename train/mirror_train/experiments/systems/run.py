"""Tune every system from one base model, and evaluate all of them on the same sets."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.errors import DataError, MirrorError
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.run import evaluate_sets
from mirror_rt.evaluation.suites import EvaluationSet, SuiteOptions, find_sets
from mirror_rt.io.atomic import sha256
from mirror_train.experiments.kept_results import KeptResult, files_sha256, run_setting
from mirror_train.experiments.systems.config import SystemJob, SystemsConfig
from mirror_train.experiments.systems.inputs import INPUTS, find_input
from mirror_train.experiments.systems.rows import Row, row_from_json, row_to_json
from mirror_train.experiments.systems.table import BASE, System, find_systems
from mirror_train.experiments.systems.worker import Tuned, tune_in_process
from mirror_train.model.pretrained import load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder

SUITES = ("sentences", "words", "linking", "geometry")


@dataclass(frozen=True, slots=True)
class Opened:
    """An encoder to evaluate, and a remark for the table, such as the parity of its bundle."""

    encoder: BatchEncoder
    about: str = ""


def open_with_torch(config: SystemsConfig) -> Callable[[str, str], Opened]:
    """Return a function that opens tuned models with PyTorch, without exporting them."""

    def open_model(name: str, model: str) -> Opened:
        options = config.load_options(model)
        return Opened(TorchEncoder.load(model, device=config.device, **options))

    return open_model


def run_systems(
    config: SystemsConfig,
    open_model: Callable[[str, str], Opened],
    *,
    on_start: Callable[[str], None] = lambda name: None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> tuple[list[Row], dict[str, str]]:
    """Tune and evaluate the systems for which `config.out` holds no result yet.

    A row is kept under a hash of everything that decides it, so that the same command can continue
    after an interruption; a system that was being tuned starts again. A system that fails becomes a
    row with an error, and the next one is tried. `open_model` opens the model of a system, given
    the system's name and the model's folder (for the base model, its name). `on_start` is called
    with the name of each system that has to be run, `on_row` with every row.

    Returns:
        The rows, with the base model's first, and the reason for each system or set that is left
        out.

    Raises:
        ConfigError: an option cannot be used.
        DataError: there is no set to evaluate on, or a kept row cannot be read.
        ModelError: the base model cannot be loaded.
    """
    runner = _Runner(config, open_model)
    chosen, left_out = _available(config)
    left_out |= untagged_sets(config.data, config.language)
    rows = []
    for system in (None, *chosen):
        name = BASE if system is None else system.name
        identity = runner.identity(system)
        kept = KeptResult(config.out / "runs", identity, name)
        row = kept.load(row_from_json)
        if row is None:
            on_start(name)
            row = runner.run(name, system)
            if row.tuned.error is None:
                kept.save(row_to_json(row))
        rows.append(row)
        on_row(row)
    return rows, left_out


def _available(config: SystemsConfig) -> tuple[list[System], dict[str, str]]:
    """Return the systems that can be tuned, and for each of the others the reason why not."""
    chosen, left_out = [], {}
    for system in find_systems(config.systems):
        lacking = [
            name for name in system.inputs if not find_input(config.data, name, config.language)
        ]
        if lacking:
            files = " or ".join(p.format(config.language) for p in INPUTS[lacking[0]])
            left_out[system.name] = f"{config.data} has no {files}" + (
                "" if config.language == "en" else f" in {config.language}"
            )
        else:
            chosen.append(system)
    if not chosen:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise DataError(f"no system can be tuned: {reasons}")
    return chosen, left_out


class _Runner:
    """The runner that tunes and evaluates one system after the other."""

    def __init__(self, config: SystemsConfig, open_model: Callable[[str, str], Opened]) -> None:
        self._config, self._open = config, open_model
        self._sets = evaluation_sets(config.data, config.language)
        base = load_pretrained(config.model, **config.load_options())
        self._max_length = base.max_length
        setting = run_setting(
            base.weights_sha256(), precision=config.precision, device=config.device
        )
        self._common = setting | {
            "sets": {f"{one.suite}/{one.name}": _hash(one.path) for one in self._sets},
            "samples": config.samples,
            "seed": config.seed,
            "export": config.export,
        }

    def identity(self, system: System | None) -> dict[str, Any]:
        """Return everything that decides the row of a system, or of the base model for None."""
        if system is None:
            return self._common | {"system": BASE}
        config = self._config
        files = {
            str(path.relative_to(config.data)): _hash(path)
            for name in (*system.inputs, *system.optional)
            for path in find_input(config.data, name, config.language)
        }
        own = {"system": system.name, "options": system.options(), "files": files}
        limits = {name: getattr(config, name) for name in ("top", "max_steps", "learning_rate")}
        return self._common | own | limits

    def run(self, name: str, system: System | None) -> Row:
        if system is None:
            return self._evaluate(name, self._config.model, Tuned())
        out = self._config.out / "models" / name
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        options = {one.name: getattr(self._config, one.name) for one in fields(SystemsConfig)}
        options |= {"out": out, "overwrite": True}
        tuned = tune_in_process(SystemJob(system=name, max_length=self._max_length, **options))
        if tuned.error is not None:
            return Row(name, tuned)
        return self._evaluate(name, str(out), tuned)

    def _evaluate(self, name: str, model: str, tuned: Tuned) -> Row:
        try:
            opened = self._open(name, model)
        except MirrorError as error:
            reason = " ".join(str(error).split())
            return Row(name, dataclasses.replace(tuned, error=reason))
        found = evaluate_sets(
            [EvaluatedModel(name, lambda language: opened.encoder)],
            self._sets,
            samples=self._config.samples,
            seed=self._config.seed,
        )
        failures = [f"{one.suite}/{one.set}: {one.reason}" for one in found.failures]
        return Row(name, tuned, found.results, failures, opened.about)


def evaluation_sets(data: Path, language: str) -> list[EvaluationSet]:
    """Return the sets of a language: similarity of sentences and of words, linking, geometry.

    Raises:
        DataError: there are no sets.
    """
    found = find_sets(data, list(SUITES), SuiteOptions()).sets
    sets = [one for one in found if one.languages == (language,)]
    if not any(one.suite != "geometry" for one in sets):
        raise DataError(
            f"{data} has no set in {language!r} to evaluate on: docs/guides/evaluation.md says "
            "under which names they are looked for"
        )
    return sets


def untagged_sets(data: Path, language: str) -> dict[str, str]:
    """Return the sets of a folder whose names have no language, and what to call each file."""
    return {
        f"{one.suite}/{one.name}": f"no language in its name; if it is in {language}, call it "
        f"{one.path.stem}-{language}{one.path.suffix}"
        for one in find_sets(data, list(SUITES), SuiteOptions()).sets
        if one.languages == (None,)
    }


def _hash(path: Path) -> str:
    """Return the hash of a file, or of the files of a folder."""
    if path.is_file():
        return sha256(path)
    return files_sha256((one for one in sorted(path.rglob("*")) if one.is_file()), path)
