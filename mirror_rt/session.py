"""onnxruntime sessions: the package imported on first use, threads and memory chosen here."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.binding import BindingPool
from mirror_rt.cpus import cpu_budget
from mirror_rt.devices import Devices, device_name, memory_of
from mirror_rt.errors import (
    BundleError,
    ClosedError,
    ConfigError,
    MirrorError,
    ProviderError,
    require,
)
from mirror_rt.providers import CPU, Providers
from mirror_rt.replicas import Runner
from mirror_rt.tokens import PaddedBatch

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = [
    "GraphSession",
    "NotStarted",
    "SessionConfig",
    "Spinning",
    "import_onnxruntime",
    "onnxruntime_errors",
]

logger = logging.getLogger("mirror_rt")

Spinning = Literal["off", "run", "always"]

# After a run of more padded tokens than this the arena gives its memory back: twice the default
# budget. 16,384 tokens of all-MiniLM-L6-v2 take 1 GB, which would stay for good.
_KEEP_TOKENS = 4096
_SHRINK = "memory.enable_memory_arena_shrinkage"

# Joins what the exporter takes apart: onnxruntime's SkipLayerNormalization adds number by number.
_SLOW_ON_CPU = ["SkipLayerNormFusion"]

_SPINNING = {
    "off": {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"},
    "run": {"session.force_spinning_stop": "1"},
    "always": {},
}


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How to run a graph.

    Attributes:
        providers: `"auto"`, `"cpu"`, `"cuda"`, `"tensorrt"`, or a list of onnxruntime's names.
        allow_fallback: run on the CPU, with a warning, where the provider asked for cannot start.
        threads: of one operator; None for the processors this process may use.
        spinning: whether threads without work spin rather than sleep: `"off"`, `"run"` (while a
            run is in flight) or `"always"` (and a while after it, onnxruntime's own default).
            None for `"run"`, and for `"off"` under a CPU quota, which spinning would use up.
        devices: numbers of NVIDIA cards, a session on each; `"all"`; None for the first.
        cuda_graphs: run small batches as CUDA graphs.
        provider_options: of the provider that is preferred, in onnxruntime's names.

    Raises:
        ConfigError: `threads` or `spinning` has an unusable value.
    """

    providers: Providers = "auto"
    allow_fallback: bool = False
    threads: int | None = None
    spinning: Spinning | None = None
    devices: Devices = None
    cuda_graphs: bool = False
    provider_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads must be in 1 .. 1024, got {self.threads}")
        if self.spinning not in (None, *get_args(Spinning)):
            raise ConfigError(
                f"spinning must be 'off', 'run', 'always' or None, got {self.spinning!r}"
            )

    def options(self, onnxruntime: Any) -> Any:
        """The same in the terms of onnxruntime."""
        budget = cpu_budget()
        options = onnxruntime.SessionOptions()
        # Given a number, onnxruntime pins no thread to a processor, which cpusets would refuse.
        options.intra_op_num_threads = self.threads or budget.threads
        # Shapes vary from batch to batch: a memory pattern for each would only grow the process.
        options.enable_mem_pattern = False
        options.log_severity_level = 4  # its errors are raised, and shown once, by us
        spinning = self.spinning or ("off" if budget.has_quota else "run")
        for name, value in _SPINNING[spinning].items():
            options.add_session_config_entry(name, value)
        return options


class NotStarted(Exception):  # noqa: N818  # what becomes of it is decided where it is caught
    """A provider does not start; the message is onnxruntime's."""


class GraphSession:
    """One graph in onnxruntime; safe to use from several threads, and in forked processes.

    Args:
        graph: the file.
        providers: onnxruntime's names, or (name, options).
        config: threads and spinning.
        device: number of the card; None for the CPU.

    Raises:
        MissingDependencyError: no onnxruntime is installed.
        NotStarted: the first provider does not start.
        BundleError: the file is not a model that onnxruntime can load.
    """

    def __init__(
        self,
        graph: Path,
        providers: Sequence[Any],
        config: SessionConfig,
        *,
        device: int | None = None,
    ) -> None:
        self.graph = graph
        self._wanted = list(providers)
        self._config = config
        self._device = device
        self._bound: BindingPool | None = None
        self._opening = threading.Lock()
        self._closed = False
        self._session: ort.InferenceSession | None = self._open()
        self.inputs = [node.name for node in self._session.get_inputs()]
        self.outputs = [node.name for node in self._session.get_outputs()]
        self.providers: list[str] = list(self._session.get_providers())
        if device is not None:
            self._bound = BindingPool(self._session, memory_of(self.providers[0], device))
        _sessions.add(self)

    @property
    def devices(self) -> list[int | None]:
        """Number of its card; None for the CPU."""
        return [self._device]

    @property
    def replicas(self) -> Sequence[Runner]:
        """Itself."""
        return [self]

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D].

        Raises:
            BundleError: onnxruntime fails on it.
            ClosedError: after `close`.
        """
        session, bound = self.session(), self._bound
        arrays = batch._asdict()
        feeds = {name: arrays[name] for name in self.inputs}
        with self.errors_named(batch):
            if bound is not None:
                return bound.run(feeds, output, None)
            return np.asarray(session.run([output], feeds, self._run_options(batch))[0])

    @contextlib.contextmanager
    def errors_named(self, batch: PaddedBatch) -> Iterator[None]:
        """Let an error of onnxruntime be a BundleError that says what failed, and where."""
        try:
            yield
        except MirrorError:
            raise
        except onnxruntime_errors(RuntimeError) as error:  # the latter of bound runs
            rows, length = batch.input_ids.shape
            where = "" if self._device is None else f" on {device_name(self._device)}"
            raise BundleError(
                f"{self.graph} failed{where} on {rows} texts of {length} tokens: {error}"
            ) from error

    def session(self) -> ort.InferenceSession:
        """The session itself, opened again in a process that was forked since.

        Raises:
            ClosedError: after `close`.
            ProviderError: CUDA, in a forked process.
        """
        if (session := self._session) is not None:
            return session
        with self._opening:
            if self._closed:
                raise ClosedError("this Encoder is closed: load it again with Encoder.load")
            if self.providers[0] != CPU:
                raise ProviderError(
                    "CUDA does not work in a process that was forked after it started: load the "
                    "Encoder there, or start processes with the method 'spawn'"
                )
            if self._session is None:
                logger.info("this process was forked: loading %s again", self.graph)
                self._session = self._open()
            return self._session

    def close(self) -> None:
        """Free the memory, once no run is in flight; every later run is a ClosedError."""
        with self._opening:
            self._closed, self._session, self._bound = True, None, None

    def _open(self) -> ort.InferenceSession:
        onnxruntime = import_onnxruntime()
        try:
            return onnxruntime.InferenceSession(
                str(self.graph),
                self._config.options(onnxruntime),
                providers=self._wanted,
                disabled_optimizers=_SLOW_ON_CPU if self._on_cpu() else None,
                enable_fallback=0,  # or a card that fails would be left for the CPU in silence
            )
        except onnxruntime_errors() as error:
            why = _cannot_load(self.graph, str(error), onnxruntime.__version__)
            raise BundleError(why) from error
        except (RuntimeError, ValueError) as error:
            raise NotStarted(str(error)) from error

    def _on_cpu(self) -> bool:
        preferred = self._wanted[0]
        return (preferred if isinstance(preferred, str) else preferred[0]) == CPU

    def _run_options(self, batch: PaddedBatch) -> Any:
        if batch.input_ids.size <= _KEEP_TOKENS or self.providers[0] != CPU:
            return None
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry(_SHRINK, "cpu:0")
        return options

    def forget(self) -> None:
        """In a forked process: leave the session of the parent alone, without its threads."""
        import ctypes

        self._opening = threading.Lock()
        if self._session is not None:
            # Never freed: that would wait for the threads to end.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._bound))
            self._session = self._bound = None


_sessions: weakref.WeakSet[GraphSession] = weakref.WeakSet()


def _after_fork() -> None:
    """Let a forked process go on: no thread of a library was forked, and waiting for one hangs."""
    sessions = list(_sessions)
    if not sessions:
        return
    import ctypes

    for session in sessions:
        session.forget()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else `tokenizers` waits for its own
    # At its end onnxruntime waits, too, where the process leaves by exit() (multiprocessing does
    # not, gunicorn's workers do). Handlers run from the last to the first: end before its own.
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def import_onnxruntime() -> Any:
    """Import onnxruntime, or say which extra brings it."""
    return require("onnxruntime", extra="cpu|gpu", purpose="running a bundle")


def onnxruntime_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Classes that onnxruntime raises for a graph it cannot load or run, and `more`."""
    values = vars(import_onnxruntime().capi.onnxruntime_pybind11_state).values()
    return *more, *(v for v in values if isinstance(v, type) and issubclass(v, Exception))


def _cannot_load(model: Path, error: str, version: str) -> str:
    """Say what to do where that is known; onnxruntime's own words are long."""
    if "opset" in error.lower() or "IR version" in error:
        return (
            f"{model} needs a newer onnxruntime than {version}: pip install -U 'mirror-rt[cpu]' "
            "(or [gpu])"
        )
    if "NOT_IMPLEMENTED" in error:
        return (
            f"{model} has operators that this onnxruntime lacks (a cuda variant runs on NVIDIA "
            f"cards alone, with onnxruntime-gpu; mirror-rt info lists the others): {error}"
        )
    return f"onnxruntime cannot load {model}: {error}"
