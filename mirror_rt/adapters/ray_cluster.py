"""Let a Ray cluster do the work of a command: connect to it, and run tasks in it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from mirror_rt.errors import ConfigError, MirrorError, ProcessGroupError, Setting, require
from mirror_rt.schema import check_rules, least

T = TypeVar("T")
R = TypeVar("R")

_ATTEMPTS = 3
# Time for cancelled tasks to save their results; then Ray ends their processes.
_SECONDS_TO_SAVE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Say which cluster does the work, and the resources of each worker.

    Attributes:
        engine: `ray` to work in a Ray cluster; by default this machine alone.
        address: of a Ray cluster that runs (`auto`, `ray://host:10001`); by default that of the
            variable RAY_ADDRESS, or a new one on this machine.
        workers: number of workers; by default as many as the cluster has room for.
        worker_cpus: CPUs of each worker, which are its threads.
        worker_gpus: cards of each worker.
    """

    engine: Literal["ray"] | None = None
    address: str | None = None
    workers: Annotated[int | None, least(1)] = None
    worker_cpus: Annotated[int, least(1)] = 1
    worker_gpus: Annotated[int, least(0)] = 0

    def __post_init__(self) -> None:
        check_rules(self)
        for name, default in (("address", None), ("workers", None), ("worker_cpus", 1),
                              ("worker_gpus", 0)):  # fmt: skip
            if self.engine is None and getattr(self, name) != default:
                raise ConfigError(Setting(name), " goes with ", Setting("engine", "ray"))


@contextlib.contextmanager
def connected(options: ClusterOptions) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine, while the block runs."""
    ray = require("ray", extra="ray", purpose="--engine ray")
    began = not ray.is_initialized()
    try:
        if began:
            ray.init(address=options.address, log_to_driver=False, logging_level=logging.WARNING)
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, MirrorError):
            raise error.cause from None
        raise ProcessGroupError(f"a worker of Ray failed: {error.cause!r}") from error
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise ProcessGroupError(
            f"Ray gave up: {_said(error)}; finished parts are saved: go on with --resume"
        ) from error
    finally:
        if began:
            ray.shutdown()


def run_tasks(
    function: Callable[[T], R],
    tasks: Sequence[T],
    options: ClusterOptions,
    *,
    again: Callable[[T], T],
) -> Iterator[tuple[T, R | ProcessGroupError]]:
    """Run a function in the workers of the connected cluster; yield tasks and results as they end.

    A task whose worker dies (killed, out of memory, or with its machine) is run again, three times
    in all; then its result is the error. When the caller is interrupted, the tasks that run get a
    KeyboardInterrupt and a minute to save their results.

    The function is of a module that the workers can import, and its exceptions end all of the
    tasks, its arguments, which are pickled. `again` returns the task to run instead of one whose
    worker died.
    """
    import ray

    remote = ray.remote(
        num_cpus=options.worker_cpus, num_gpus=options.worker_gpus, max_retries=0
    )(function)  # fmt: skip
    waiting = deque((task, task, 1) for task in tasks)
    running: dict[Any, tuple[T, T, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (options.workers or math.inf):
                task, tried, attempt = waiting.popleft()
                running[remote.remote(tried)] = task, tried, attempt
            reference = ray.wait(list(running))[0][0]
            task, tried, attempt = running.pop(reference)
            result = _result(reference)
            if isinstance(result, ProcessGroupError) and attempt < _ATTEMPTS:
                waiting.append((task, again(tried), attempt + 1))
            else:
                yield task, result
    finally:
        for reference in running:
            ray.cancel(reference, force=False)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=_SECONDS_TO_SAVE)


def _result(reference: Any) -> Any:
    """Return the result of a task, or an error if its worker died."""
    import ray
    from ray import exceptions

    died = (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError,
            exceptions.ObjectLostError)  # fmt: skip
    try:
        return ray.get(reference)
    except died as error:
        return ProcessGroupError(f"its worker died {_ATTEMPTS} times, at last: {_said(error)}")


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines[-1:])}"
