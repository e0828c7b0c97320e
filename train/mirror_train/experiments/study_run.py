"""Run a study: tune and evaluate every setup with every seed, and keep each result at once."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.evaluation import evaluate_similarity, read_scored_pairs
from mirror_rt.io.atomic import sha256
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.kept_results import KeptResult, run_setting
from mirror_train.experiments.studies import Setup, StudyConfig
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.run_config import TuneConfig
from mirror_train.training.tune import tune


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one setup with one seed, None for a base model, which has no randomness.

    `spearman` is the rho on the pairs; `seconds` includes the evaluation.
    """

    label: str
    seed: int | None
    spearman: float
    seconds: float


def run_study(
    config: StudyConfig,
    *,
    on_run: Callable[[Run, int, int, float], None] = lambda run, done, total, left: None,
) -> list[Run]:
    """Run, seed by seed, what `config.out` does not hold yet; return all runs.

    A run is kept under a hash of everything that decides its result. So an interrupted study can be
    continued, seeds can be added, and studies in one folder share the runs that they have in
    common. `on_run` is called after every run with the run, the number of runs done, the total, and
    an estimate of the seconds that the rest will take.

    Raises:
        ConfigError: an option cannot be used.
        DataError: there are fewer strings than a batch holds, or the pairs cannot be read or
            scored.
        ModelError: the base model cannot be loaded, or a loss diverges.
        Interrupted: Ctrl-C during tuning; the current run has left a checkpoint.
    """
    runner = _Runner(config)
    setups = config.study.setups(config.recipe, len(config.data))
    tasks = [runner.task(setup, None) for setup in setups if not setup.tuned]
    for seed in range(config.seed, config.seed + config.seeds):
        tasks += [runner.task(setup, seed) for setup in setups if setup.tuned]
    finished = {task.kept.path: runner.load(task) for task in tasks}
    clock = _Clock([(task, finished[task.kept.path]) for task in tasks])
    runs = []
    for task in tasks:
        run = finished[task.kept.path]
        if run is None:
            run = finished[task.kept.path] = runner.run(task)
            clock.add(task, run)
        run = dataclasses.replace(run, label=task.setup.label)
        runs.append(run)
        on_run(run, len(runs), len(tasks), clock.left)
    return runs


def random_strings(like: list[str], *, seed: int) -> list[str]:
    """Return different random strings of letters and digits, as long as those of `like`.

    They follow the "zero-semantics" strings of EMNLP 2021, section 4.4. Letters are lower case,
    because an uncased model could not tell some strings apart otherwise. A string that was drawn
    before is replaced by a longer one.
    """
    alphabet = list(string.ascii_lowercase + string.digits)
    rng = np.random.default_rng([seed, 2])
    drawn: dict[str, None] = {}
    for text in like:
        length = len(text)
        while (candidate := "".join(rng.choice(alphabet, length))) in drawn:
            length += 1
        drawn[candidate] = None
    return list(drawn)


@dataclass(frozen=True, slots=True)
class _Task:
    """A planned run, and the file of its result."""

    setup: Setup
    seed: int | None
    recipe: Recipe
    pooling: Pooling | Literal["auto"]
    data: TrainingData
    kept: KeptResult

    @property
    def work(self) -> int:
        """The number of strings that pass through the model in training."""
        return len(self.data) * self.recipe.epochs if self.setup.tuned else 0


class _Runner:
    """The maker and runner of a study's tasks."""

    def __init__(self, config: StudyConfig) -> None:
        self._config = config
        self._pairs = read_scored_pairs(config.pairs)
        weights = self._encoder("auto").pretrained.weights_sha256()
        setting = run_setting(weights, precision=config.precision, device=config.device)
        self._common = setting | {"pairs": sha256(config.pairs)}

    def task(self, setup: Setup, seed: int | None) -> _Task:
        config = self._config
        recipe = config.recipe.replace(**setup.changes)
        data = self._data(setup, seed)
        pooling = setup.changes.get("pooling", config.pooling)
        identity: dict[str, Any] = self._common | {"pooling": pooling, "seed": seed}
        if setup.tuned:
            identity |= {"recipe": dataclasses.asdict(recipe), "strings": data.sha256()}
        return _Task(setup, seed, recipe, pooling, data, KeptResult(config.out / "runs", identity))

    def load(self, task: _Task) -> Run | None:
        """Return the kept result of a task, or None."""
        return task.kept.load(
            lambda found: Run(found["label"], task.seed, float(found["spearman"]), found["seconds"])
        )

    def run(self, task: _Task) -> Run:
        began = time.perf_counter()
        encoder = self._tuned(task) if task.setup.tuned else self._encoder(task.pooling)
        rho = evaluate_similarity(encoder, self._pairs)
        shutil.rmtree(self._work(task), ignore_errors=True)
        with contextlib.suppress(OSError):  # it may hold a checkpoint of another study
            self._work(task).parent.rmdir()
        seconds = round(time.perf_counter() - began, 2)
        run = Run(task.setup.label, task.seed, rho, seconds)
        task.kept.save(dataclasses.asdict(run))
        return run

    def _tuned(self, task: _Task) -> TorchEncoder:
        config, out = self._config, self._work(task)
        shutil.rmtree(out, ignore_errors=True)  # left by a run that was killed in its evaluation
        own = {"out": out, "seed": task.seed or 0, "overwrite": False, "show_progress_bar": False}
        tune(
            task.data,
            TuneConfig(
                recipe=task.recipe,
                pooling=task.pooling,
                precision=config.precision,
                resume=True,
                **config.run_options() | own,
            ),
        )
        return TorchEncoder.load(out, device=config.device)

    def _encoder(self, pooling: Pooling | Literal["auto"]) -> TorchEncoder:
        config = self._config
        return TorchEncoder.load(
            config.model, pooling=pooling, device=config.device, **config.load_options()
        )

    def _work(self, task: _Task) -> Path:
        return self._config.out / "work" / task.kept.path.stem

    def _data(self, setup: Setup, seed: int | None) -> TrainingData:
        data = self._config.data
        strings = data.first[: setup.top]
        if setup.random_strings:
            strings = random_strings(strings, seed=seed or 0)
        return dataclasses.replace(data, first=strings, second=strings)


class _Clock:
    """An estimate of the remaining time, from the time per string and epoch of the runs so far."""

    def __init__(self, tasks: list[tuple[_Task, Run | None]]) -> None:
        self._done = sum(task.work for task, run in tasks if run is not None)
        self._seconds = sum(run.seconds for task, run in tasks if run is not None)
        self._left = sum(task.work for task, run in tasks if run is None)

    def add(self, task: _Task, run: Run) -> None:
        self._done += task.work
        self._left -= task.work
        self._seconds += run.seconds

    @property
    def left(self) -> float:
        """The estimated remaining seconds; NaN before the first tuned run."""
        return self._left * self._seconds / self._done if self._done else float("nan")
