"""onnxruntime sessions: imports onnxruntime on first use, chooses threads and memory."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.manifest import Layout
from mirror_rt.errors import BundleError, ClosedError, MirrorError, ProviderError, require
from mirror_rt.inference.devices import device_name, memory_of
from mirror_rt.inference.forks import forget_after_fork, leak
from mirror_rt.inference.io_binding import BindingPool, shrinking
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.providers import CPU
from mirror_rt.io.file_states import FileState, file_state
from mirror_rt.tokens.joining import graph_inputs
from mirror_rt.tokens.padding import PaddedBatch

if TYPE_CHECKING:
    import onnxruntime as ort

logger = logging.getLogger("mirror_rt")

# After a run of more padded tokens than this (twice the default budget) the arena gives its memory
# back: 16,384 tokens of all-MiniLM-L6-v2 take 1 GB, which would otherwise never be freed.
_KEEP_TOKENS = 4096

# This fusion would join the sum and the normalisation that the exporter takes apart on purpose: on
# the CPU, onnxruntime's SkipLayerNormalization adds number by number.
_SLOW_ON_CPU = ["SkipLayerNormFusion"]


class NotStarted(Exception):  # noqa: N818  # whether it is an error is decided where it is caught
    """Raised where a provider does not start; the message is onnxruntime's."""


class GraphSession(LoadedGraph):
    """A graph in onnxruntime; safe to use from several threads, and in forked processes.

    Args:
        graph: path of the graph's file.
        providers: onnxruntime's names of the providers, or pairs (name, options).
        config: says how many threads to use, and whether they spin.
        device: number of the card; None for the CPU.
    """

    def __init__(
        self,
        graph: Path,
        providers: Sequence[Any],
        config: LoadOptions,
        *,
        device: int | None = None,
    ) -> None:
        self.graph = graph
        self._wanted = list(providers)
        self._config = config
        self._device, self.devices = device, [device]
        self._bound: BindingPool | None = None
        self._opening = threading.Lock()
        self._closed = False
        # It has an item for each run in flight: threads and signal handlers may append and pop at
        # any time.
        self._in_flight: list[None] = []
        self._sleeping: ort.InferenceSession | None = None
        self._files = {path: _state(path) for path in graph.parent.glob("*")}
        self._session: ort.InferenceSession | None = self._open(config)
        self.inputs = {node.name: node.type for node in self._session.get_inputs()}
        self.outputs = [node.name for node in self._session.get_outputs()]
        # The length of each output's vectors; None where the graph leaves it open.
        self.widths = {node.name: _width(node.shape) for node in self._session.get_outputs()}
        self.providers: list[str] = list(self._session.get_providers())
        if device is not None:
            self._bound = BindingPool(self._session, memory_of(self.providers[0], device))
        forget_after_fork(self)

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D]."""
        feeds = graph_inputs(batch, self.inputs)
        (in_flight := self._in_flight).append(None)
        try:
            if (session := self._session) is None:
                session = self.session()
            if (bound := self._bound) is not None:
                return bound.run(feeds, output)
            if len(in_flight) > 1:
                session = self._sleeping or session
            shrinks = batch.input_ids.size > _KEEP_TOKENS and self.providers[0] == CPU
            options = shrinking("cpu:0") if shrinks else None
            vectors: npt.NDArray[np.float32] = session.run([output], feeds, options)[0]
            return vectors
        except MirrorError:
            raise
        except onnxruntime_errors(RuntimeError) as error:  # bound runs raise RuntimeError
            raise self.failure(error, batch) from error
        finally:
            in_flight.pop()

    def failure(self, error: Exception, batch: PaddedBatch) -> BundleError:
        """Return an error that says which graph failed, on which device and on which batch."""
        rows, length = batch.input_ids.shape
        where = "" if self._device is None else f" on {device_name(self._device)}"
        return BundleError(
            f"{self.graph} failed{where} on {rows} texts of {length} tokens: {error}"
        )

    def session(self) -> ort.InferenceSession:
        """Return onnxruntime's session, opened again if this process was forked since."""
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
                if self._was_replaced():
                    raise BundleError(
                        f"{self.graph} was replaced before this process was forked: load it again"
                    )
                logger.info("this process was forked: loading %s again", self.graph)
                self._session = self._open(self._config)
            return self._session

    def close(self) -> None:
        """Free the memory once no run is in flight; every later run raises ClosedError."""
        with self._opening:
            self._closed = True
            self._session = self._sleeping = self._bound = None

    def prepare_concurrent_runs(self) -> None:
        """Keep the threads of concurrent runs from spinning on processors that another run needs.

        On the CPU, a run that begins while another is in flight goes to a second session, whose
        threads sleep instead of spinning. There is one only if the weights are mapped, because
        they would be in memory twice otherwise.
        """
        config = self._config
        spins = config.resolved_spinning == "run" and config.resolved_threads > 1
        if not (spins and self._on_cpu() and Layout.is_mapped(self.graph)):
            return
        with self._opening:
            if self._closed or self._sleeping is not None:
                return
            if self._was_replaced():
                return  # the file has been replaced, perhaps by another model
            try:
                self._sleeping = self._open(dataclasses.replace(config, spinning="off"))
            except (BundleError, NotStarted) as error:
                logger.warning("%s: no second session for runs in parallel: %s", self.graph, error)

    def _open(self, config: LoadOptions) -> ort.InferenceSession:
        onnxruntime = import_onnxruntime()
        try:
            return onnxruntime.InferenceSession(
                str(self.graph),
                config.session_options(onnxruntime),
                providers=self._wanted,
                disabled_optimizers=_SLOW_ON_CPU if self._on_cpu() else None,
                enable_fallback=0,  # otherwise it would silently go on without a card that fails
            )
        except onnxruntime_errors() as error:
            why = _cannot_load(self.graph, str(error), onnxruntime.__version__)
            raise BundleError(why) from error
        except (RuntimeError, ValueError) as error:
            raise NotStarted(str(error)) from error

    def _was_replaced(self) -> bool:
        """Return whether the graph, or a file beside it, is another one than was loaded."""
        return any(_state(path) != state for path, state in self._files.items())

    def _on_cpu(self) -> bool:
        preferred = self._wanted[0]
        return (preferred if isinstance(preferred, str) else preferred[0]) == CPU

    def forget(self) -> bool:
        """Drop the parent's sessions in a forked process, where their threads do not exist."""
        self._opening, self._in_flight = threading.Lock(), []
        for held in (self._session, self._sleeping, self._bound):
            leak(held)
        self._session = self._sleeping = self._bound = None
        return True


def _width(shape: Sequence[Any]) -> int | None:
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def _state(path: Path) -> FileState | None:
    """Return the state of a file, which another link to it does not change."""
    found = file_state(path)
    return None if found is None or path.is_dir() else (*found[:4], 0)


def import_onnxruntime(purpose: str = "running a bundle", extra: str = "cpu|gpu") -> Any:
    """Import onnxruntime, or raise an error that says which extra installs it.

    From 1.29 on it reports how it is used to Microsoft, unless a variable forbids it before it is
    imported. An encoder should ask the network for nothing, so the variable is set, unless it is.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return require("onnxruntime", extra=extra, purpose=purpose)


def onnxruntime_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors that onnxruntime raises for a graph it cannot load or run, and `more`."""
    values = vars(import_onnxruntime().capi.onnxruntime_pybind11_state).values()
    return *more, *(v for v in values if isinstance(v, type) and issubclass(v, Exception))


def _cannot_load(model: Path, error: str, version: str) -> str:
    """Return a message that says what to do if that is known; onnxruntime's own are long."""
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
