"""Run a study: train each row, measure it on the same sets, and keep every result.

A result is kept in a file named by a hash of everything that decides it. So the same command can
continue after an interruption, and commands can share equal runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import shutil
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mirror_rt
import mirror_train
from mirror_rt.bundle.manifest import Pooling
from mirror_rt.child_process import give_task, how_it_ended, read_reply, start_child
from mirror_rt.diagnostics.benchmarking import peak_memory_mb
from mirror_rt.errors import DataError, MirrorError
from mirror_rt.evaluation.models import PADDED_LENGTH, EvaluatedEncoder, EvaluatedModel
from mirror_rt.evaluation.run import evaluate_sets
from mirror_rt.evaluation.static_vectors import StaticVectors
from mirror_rt.io.atomic import path_sha256, sha256, write_json
from mirror_rt.kept_work import Identity
from mirror_train.compute.precision import resolve_device, resolve_precision
from mirror_train.experiments.study import Row, Run, Study, StudyConfig
from mirror_train.training.run_config import RunConfig

# Folders of the packages from which nothing comes that trains or measures a model.
_ELSEWHERE = {"adapters", "bulk", "cli", "client", "compat", "diagnostics", "experiments",
              "reranking", "server", "triton", "__pycache__"}  # fmt: skip
_CODE = (".py", ".so", ".pyd", ".toml")
_ROOTS = tuple(Path(str(one.__file__)).parent for one in (mirror_rt, mirror_train))


@dataclass(frozen=True, slots=True)
class Opened:
    """An encoder to evaluate, and a remark for the table, such as the parity of its bundle."""

    encoder: EvaluatedEncoder
    about: str = ""


# Opens a model to evaluate it, from the name of its run, its folder or name, and its pooling.
Opener = Callable[[str, str, Pooling | Literal["auto"]], Opened]


def open_with_torch(config: RunConfig) -> Opener:
    """Return a function that opens tuned models with PyTorch, without exporting them."""
    from mirror_train.model.torch_encoder import TorchEncoder

    def open_model(label: str, model: str, pooling: Pooling | Literal["auto"]) -> Opened:
        options = config.load_options(model)
        if pooling == "mean-with-padding":
            options["pad_to"] = PADDED_LENGTH
        return Opened(TorchEncoder.load(model, pooling=pooling, device=config.device, **options))

    return open_model


def run_study(
    study: Study,
    config: StudyConfig,
    *,
    open_model: Opener | None = None,
    on_run: Callable[[Run, int, int, float], None] = lambda run, done, total, left: None,
) -> list[Run]:
    """Run, seed by seed, the rows that `config.out` lacks; return all runs.

    A run is kept under a hash of everything that decides its result. So an interrupted study can be
    continued, seeds can be added, and studies in one folder share the runs that they have in
    common. `open_model` opens the models to evaluate, by default with PyTorch. `on_run` is called
    after every run with the run, the number of runs done, the total, and an estimate of the seconds
    that the rest will take (NaN before the first tuned run).

    Where the study is not isolated, a row that fails ends it; so does, in any study, a model that
    no set can measure.
    """
    runner = _Runner(study, config, open_model or open_with_torch(config))
    tasks = [runner.task(row, None) for row in study.rows if row.train is None]
    for seed in range(config.seed, config.seed + config.seeds):
        tasks += [runner.task(row, seed) for row in study.rows if row.train is not None]
    found = {task.path: task.load() for task in tasks}  # all are read before any work
    kept = {path for path, run in found.items() if run is not None}
    runs: list[Run] = []
    for done, task in enumerate(tasks, 1):
        path = task.path
        run = found[path] = found[path] or runner.run(task)
        runs.append(dataclasses.replace(run, label=task.row.label, kept=path in kept))
        on_run(runs[-1], done, len(tasks), _seconds_left(tasks, found))
    return runs


@dataclass(frozen=True, slots=True)
class _Task:
    """A planned run, and the file that keeps its result."""

    row: Row
    seed: int | None
    identity: Identity
    path: Path

    @property
    def work(self) -> float:
        """The amount of training that a study takes."""
        return 0.0 if self.row.train is None else self.row.work

    def load(self) -> Run | None:
        """Return the kept result, or None; a file that holds no such result raises DataError."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            for difference in self.identity.differences(found.pop("identity")):
                raise ValueError(f"it is of another run: {difference}")
            return Run.from_json(found)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self.path} is not the result of a run ({error}): remove it to run it again"
            ) from error

    def save(self, run: Run) -> None:
        """Keep a result."""
        write_json(self.path, run.to_json(replicates=True) | {"identity": self.identity.values})


def _seconds_left(tasks: list[_Task], found: dict[Path, Run | None]) -> float:
    """Estimate the seconds of the missing runs by those for a unit of work of the others."""
    runs = {task.path: task.work for task in tasks}
    done = sum(work for path, work in runs.items() if found[path] is not None)
    seconds = sum(run.seconds for run in found.values() if run is not None)
    return (sum(runs.values()) - done) * seconds / done if done else float("nan")


class _Runner:
    """Plans the runs of a study, and trains and measures each."""

    def __init__(self, study: Study, config: StudyConfig, open_model: Opener) -> None:
        self._study, self._config, self._open = study, config, open_model
        files = {f"{one.suite}/{one.name}": (one.path, *one.further) for one in study.sets}
        self._setting = run_setting(config) | {
            "sets": {name: " ".join(map(path_sha256, files[name])) for name in files},
            "code": product_code(),
            "bootstrap": [config.samples, config.seed] if config.samples else None,
            **study.setting,
        }

    def task(self, row: Row, seed: int | None) -> _Task:
        own = {"pooling": row.pooling, "seed": seed, "own code": own_code(row.train)}
        identity = Identity(self._setting | row.identity | own)
        path = self._config.out / "runs" / f"{identity.digest[:16]}.json"
        return _Task(row, seed, identity, path)

    def run(self, task: _Task) -> Run:
        """Train and measure a row, and keep the result unless it is a failure."""
        if task.row.train is None:
            run = self._measured(task, Run(task.row.label, None), self._config.model)
        else:
            run = self._trained_and_measured(task)
        if run.error is None:
            task.save(run)
        return run

    def _trained_and_measured(self, task: _Task) -> Run:
        config, isolated = self._config, self._study.isolated
        out = self._folder(task)
        shutil.rmtree(out, ignore_errors=True)  # left by a run that was killed in its evaluation
        out.parent.mkdir(parents=True, exist_ok=True)
        own = {"out": out, "seed": task.seed, "overwrite": isolated}
        given = (task.row, RunConfig(**config.run_options() | own))
        facts = train_in_child(given) if isolated else train_row(given)
        run = Run(task.row.label, task.seed, **facts)
        if run.error is None:
            run = self._measured(task, run, str(out))
        if not isolated:
            shutil.rmtree(out, ignore_errors=True)
            with contextlib.suppress(OSError):  # it may hold a checkpoint of another study
                out.parent.rmdir()
        return run

    def _folder(self, task: _Task) -> Path:
        if self._study.isolated:
            more = "" if task.seed == self._config.seed else f"-seed-{task.seed}"
            return self._config.out / "models" / f"{task.row.label}{more}"
        return self._config.out / "work" / task.path.stem

    def _measured(self, task: _Task, run: Run, model: str) -> Run:
        config = self._config
        try:
            name = run.label if run.seed is None else Path(model).name
            if (vectors := task.row.vectors) is not None:
                opened = Opened(StaticVectors.read(vectors))
            else:
                opened = self._open(name, model, task.row.pooling)
        except MirrorError as error:
            if not self._study.isolated:
                raise
            return dataclasses.replace(run, error=" ".join(str(error).split()))
        source = None if vectors is not None else (model, task.row.pooling)
        found = evaluate_sets(
            [EvaluatedModel(run.label, lambda language: opened.encoder, source=source)],
            self._study.sets,
            samples=config.samples,
            seed=config.seed,
        )
        failures = [f"{one.suite}/{one.set}: {one.reason}" for one in found.failures]
        if not found.results:  # the other rows could not be measured either
            raise DataError(f"{run.label} cannot be measured: {'; '.join(failures)}")
        return dataclasses.replace(
            run, results=found.results, failures=failures, about=opened.about
        )


def run_setting(config: StudyConfig) -> dict[str, Any]:
    """Return the facts that decide every result: base model, precision, device and torch."""
    import torch  # imported here, because the other functions work without torch

    from mirror_train.model.pretrained import load_pretrained

    device = resolve_device(config.device)
    return {
        "model": load_pretrained(config.model, **config.load_options()).weights_sha256(),
        "precision": resolve_precision(config.precision, device),
        "device": device.type,
        "torch": torch.__version__,
    }


def train_row(task: tuple[Row, RunConfig]) -> dict[str, Any]:
    """Train a row in this process; return the fields of its `Run` that are known then."""
    row, config = task
    assert row.train is not None  # a base model is not trained
    began = time.perf_counter()
    report = row.train(config)
    data = describe_data(report.manifest.data or {})
    return {"seconds": round(time.perf_counter() - began, 2), "data": data}


def train_in_child(task: tuple[Row, RunConfig]) -> dict[str, Any]:
    """Train a row in a child process, which is killed on any exception here, even Ctrl-C."""
    with start_child() as process:
        try:
            give_task(process, _train_alone, task)
            reply = read_reply(process)
        except BaseException:
            process.kill()
            raise
    return reply or {"error": how_it_ended(process)}


def _train_alone(task: tuple[Row, RunConfig]) -> dict[str, Any]:
    """Train a row, and measure the memory of this process, which does nothing else."""
    import torch

    try:
        found = train_row(task)
    except (MirrorError, OSError) as error:
        return {"error": " ".join(str(error).split())}
    used = torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else 0.0
    return found | {"memory_mb": peak_memory_mb(), "device_mb": round(used, 1) if used else None}


def describe_data(data: dict[str, Any]) -> str:
    """Return the sources and sizes of a manifest's training data in words."""
    if "source" in data:
        return f"{data['source']}, {data.get('strings', data.get('rows', 0)):,}"
    parts = [describe_data(part) for part in data.values() if isinstance(part, dict)]
    return "; ".join(part for part in parts if part)


def product_code() -> dict[str, str]:
    """Return the version, and a digest of the files that train and measure models."""
    digest = hashlib.sha256()
    for root in _ROOTS:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            if path.suffix in _CODE and name.parts[0] not in _ELSEWHERE:
                digest.update(f"{name.as_posix()} {sha256(path)}\n".encode())
    return {"mirror_rt": mirror_rt.__version__, "files": digest.hexdigest()}


def own_code(train: Any) -> list[str]:
    """Return the digests of the files of the functions that train a row, beside `product_code`."""
    return sorted({sha256(path) for path in _files(train)})


def _files(value: Any) -> Iterator[Path]:
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _files(part)
    elif isinstance(value, types.FunctionType | types.MethodType | type):
        try:
            path = Path(str(inspect.getsourcefile(value))).resolve()
        except TypeError:  # a class of C
            return
        inside = [root for root in _ROOTS if path.is_relative_to(root)]
        known = inside and path.relative_to(inside[0]).parts[0] not in _ELSEWHERE
        if path.is_file() and not known:
            yield path
