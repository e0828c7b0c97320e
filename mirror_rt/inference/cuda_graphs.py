"""Run small batches as CUDA graphs: one launch for all the kernels of a run.

A captured graph repeats its kernels on the same addresses and shapes that it was captured with. So
every shape has buffers of its own, and texts are padded up to the next shape. onnxruntime keeps
captured graphs per thread, and two graphs that run at once would overwrite each other, so one
thread runs all of them. A graph may write to memory that its session considers free, so the
graphs have a session of their own, besides the session for all other shapes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError, MirrorError, Setting
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.session import GraphSession, import_onnxruntime, onnxruntime_errors
from mirror_rt.tokens.joining import graph_inputs
from mirror_rt.tokens.padding import PaddedBatch

if TYPE_CHECKING:
    import onnxruntime as ort

ROWS = (1, 2, 4, 8)
LENGTHS = (16, 32, 64, 128)
_CAPTURED_OUTPUTS = ("sentence_embedding", "pooled_embedding")
Shape = tuple[int, int]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Capture:
    """The buffers of a shape on the device, and the binding and options that repeat its graph."""

    binding: ort.IOBinding
    inputs: dict[str, ort.OrtValue]
    outputs: dict[str, ort.OrtValue]
    options: Any


class CapturedShapes:
    """Captures every small shape of a graph, and runs them.

    Args:
        open_session: opens the session, with CUDA graphs enabled.
        memory: kind and number of the card's memory, as onnxruntime names it.
        dimension: length of the vectors.
        max_length: most tokens of a text.
        pad_id: token id to pad with.
    """

    def __init__(
        self,
        open_session: Callable[[], GraphSession],
        *,
        memory: tuple[str, int],
        dimension: int,
        max_length: int,
        pad_id: int,
    ) -> None:
        self._memory = memory
        self._dimension, self._pad_id = dimension, pad_id
        lengths = sorted({min(length, max_length) for length in LENGTHS})
        self._shapes: list[Shape] = list(product(ROWS, lengths))
        self._captures: dict[Shape, _Capture] = {}
        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-cuda-graphs")
        try:
            self._session = self._thread.submit(self._capture_all, open_session).result()
        except BaseException:
            self._thread.shutdown(wait=True)
            raise

    def fit(self, rows: int, length: int) -> Shape | None:
        """Return the smallest shape that holds a batch, or None if none does."""
        if os.getpid() != self._process:
            return None  # the thread was not forked
        fitting = [shape for shape in self._shapes if rows <= shape[0] and length <= shape[1]]
        return min(fitting, key=lambda shape: shape[0] * shape[1], default=None)

    def run(self, shape: Shape, batch: PaddedBatch, output: str) -> Vectors:
        """Run a batch in a shape that holds it: float32 [rows, D]."""
        try:
            future = self._thread.submit(self._replay, shape, batch, output)
        except RuntimeError:  # the executor is shut down
            self._session.session()  # raises ClosedError
            raise
        return future.result()

    def close(self) -> None:
        """Free the graphs and their session once no run is in flight."""
        self._session.close()
        if os.getpid() != self._process:
            return
        with contextlib.suppress(RuntimeError):  # the executor is shut down already
            self._thread.submit(self._captures.clear)
        self._thread.shutdown(wait=True)

    def _capture_all(self, open_session: Callable[[], GraphSession]) -> GraphSession:
        """Capture all shapes in the calling thread, before anything else runs on the card."""
        session = open_session()
        try:
            # Begin with the largest, so that the arena never grows while a graph is captured.
            for number, shape in enumerate(sorted(self._shapes, reverse=True), 1):
                self._captures[shape] = self._capture(session, shape, number)
        except onnxruntime_errors(RuntimeError) as error:
            session.close()
            raise ConfigError(
                Setting("cuda_graphs", True),
                f": {session.graph} cannot be captured as a CUDA graph: {error}; load it without",
            ) from error
        return session

    def _capture(self, session: GraphSession, shape: Shape, number: int) -> _Capture:
        onnxruntime = import_onnxruntime()
        opened = session.session()
        make = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        zeros = np.zeros(shape, dtype=np.int64)
        example = self._inputs(PaddedBatch(zeros, np.ones_like(zeros), zeros), session)
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(number))  # 0 is onnxruntime's default
        capture = _Capture(
            opened.io_binding(),
            {
                name: make(list(array.shape), array.dtype, *self._memory)
                for name, array in example.items()
            },
            {
                name: make([shape[0], self._dimension], np.float32, *self._memory)
                for name in _CAPTURED_OUTPUTS
            },
            options,
        )
        for name, value in capture.inputs.items():
            capture.binding.bind_ortvalue_input(name, value)
            value.update_inplace(example[name])
        for name, value in capture.outputs.items():
            capture.binding.bind_ortvalue_output(name, value)
        opened.run_with_iobinding(capture.binding, options)  # warms up, captures and runs
        return capture

    @staticmethod
    def _inputs(batch: PaddedBatch, session: GraphSession) -> dict[str, npt.NDArray[np.integer]]:
        return graph_inputs(batch, session.inputs, keep_padding=True)

    def _replay(self, shape: Shape, batch: PaddedBatch, output: str) -> Vectors:
        capture, rows = self._captures[shape], len(batch.input_ids)
        arrays = self._inputs(_pad_to(batch, shape, self._pad_id), self._session)
        for name, value in capture.inputs.items():
            value.update_inplace(arrays[name])
        capture.binding.synchronize_inputs()
        self._session.session().run_with_iobinding(capture.binding, capture.options)
        return np.array(capture.outputs[output].numpy()[:rows])


class WithCudaGraphs(LoadedGraph):
    """A session for all batches but those that fit a captured shape."""

    def __init__(self, session: GraphSession, captured: CapturedShapes) -> None:
        self._session, self._captured = session, captured
        self.graph, self.providers = session.graph, session.providers
        self.outputs, self.devices = session.outputs, session.devices

    def run(self, batch: PaddedBatch, output: str) -> Vectors:
        """Run a batch: float32 [rows, D]."""
        shape = self._captured.fit(*batch.input_ids.shape)
        if shape is None or output not in _CAPTURED_OUTPUTS:
            return self._session.run(batch, output)
        try:
            return self._captured.run(shape, batch, output)
        except MirrorError:
            raise
        except onnxruntime_errors(RuntimeError) as error:
            raise self._session.failure(error, batch) from error

    def close(self) -> None:
        """Close the captured graphs and the session."""
        self._captured.close()
        self._session.close()


def _pad_to(batch: PaddedBatch, shape: Shape, pad_id: int) -> PaddedBatch:
    """Pad the rows to the length of a shape, and fill its other rows with copies of the first."""
    rows, length = batch.input_ids.shape

    def padded(array: npt.NDArray[np.int64], value: int = 0) -> npt.NDArray[np.int64]:
        out = np.full(shape, value, dtype=np.int64)
        out[:rows, :length] = array
        out[rows:] = out[0]
        return out

    ids, mask, types = batch
    return PaddedBatch(padded(ids, pad_id), padded(mask), padded(types))
