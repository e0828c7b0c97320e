"""A runner that computes a bundle's fp32 graph with the native engine."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.errors import BundleError, ClosedError
from mirror_rt.inference.forks import forget_after_fork
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.native.architecture import distances, find_pooling, read_bert
from mirror_rt.inference.native.engine_model import (
    Arguments,
    Embeddings,
    EngineModel,
    Floats,
    Tensors,
    UnsupportedModelError,
    expect,
    pair,
)
from mirror_rt.inference.native.modern import is_modern, read_modern, rotary_table
from mirror_rt.inference.native.onnx_graph import Graph
from mirror_rt.inference.native.sizes import check_sizes
from mirror_rt.inference.providers import NATIVE
from mirror_rt.tokens.padding import PaddedBatch

# How often a thread that waits for another looks again before it gives up its processor.
_SPINS = {"off": 0, "run": 4000, "always": 4000}
# The largest table of words of which the engine keeps a copy of its own; one of a model for a
# hundred languages stays mapped from the file, which several processes then share.
_KEPT_BYTES = 1 << 27


def recognise(path: Path, longest: int) -> EngineModel:
    """Recognise an encoder in its graph.

    Args:
        path: an ONNX file, in float32.
        longest: most tokens of a text, where the graph does not say it.

    Raises:
        UnsupportedModelError: the graph is not one that the engine can run.
        BundleError: it is damaged.
    """
    graph = Graph(path)
    try:
        embeddings, layers = (read_modern if is_modern(graph) else read_bert)(graph)
        hidden = check_sizes(graph, embeddings, layers, longest)
        pooling, maps = find_pooling(graph)
        for name in maps:
            expect(graph, graph.shape(name) == (hidden, hidden), "a layer behind the pooling")
        return EngineModel(graph, longest, hidden, embeddings, layers, pooling, maps)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise UnsupportedModelError(f"{path}: {error}") from error


class NativeRunner(LoadedGraph):
    """An encoder in the native engine; safe to use from several threads, and in forked processes.

    Args:
        encoder: the encoder, as `recognise` found it.
        precision: of the matrix products: `fp32`, `bf16` or `int8`.
        options: say how many threads to use, and whether they spin.

    Raises:
        UnsupportedModelError: the engine refuses a weight.
    """

    def __init__(self, encoder: EngineModel, precision: str, options: LoadOptions) -> None:
        self.graph = encoder.tensors.path
        self.providers: list[str] = [NATIVE]
        self.outputs = ["sentence_embedding", "pooled_embedding", "last_hidden_state"]
        self.devices: list[int | None] = [None]
        self._threads = options.resolved_threads
        self._spins = _SPINS[options.resolved_spinning]
        self._encoder: _core.NativeEncoder | None
        self._pooling = encoder.pooling
        self._typed = encoder.embeddings.typed
        try:
            self._encoder = _pack(encoder, precision)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise UnsupportedModelError(f"{self.graph}: {error}") from error
        forget_after_fork(self)

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D], or [rows, length, D] for the vectors of its tokens.

        Raises:
            BundleError: a token id is outside the vocabulary, a text is too long, or there is no
                memory.
            ClosedError: the runner is closed.
        """
        encoder, ids, mask = self._open(), batch.input_ids, batch.attention_mask
        tokens = output == "last_hidden_state"
        try:
            vectors = encoder.run(
                ids,
                mask,
                pooling="none" if tokens else self._pooling,
                normalize=output == "sentence_embedding",
                threads=self._threads,
                spins=self._spins,
                types=batch.token_type_ids if self._typed else None,
            )
        except (IndexError, ValueError, MemoryError) as error:
            rows, length = ids.shape
            raise BundleError(
                f"{self.graph} failed on {rows} texts of {length} tokens: {error}"
            ) from error
        if not tokens:
            return vectors
        padded = np.zeros((*ids.shape, vectors.shape[1]), np.float32)
        padded[mask != 0] = vectors
        return padded

    def close(self) -> None:
        """Free the memory once no run is in flight; every later run raises ClosedError."""
        self._encoder = None

    def forget(self) -> bool:
        """Keep all, which goes on in a forked process with other threads."""
        return False

    def _open(self) -> _core.NativeEncoder:
        if self._encoder is None:
            raise ClosedError("this Encoder is closed: load it again with Encoder.load")
        return self._encoder


def _pack(encoder: EngineModel, precision: str) -> _core.NativeEncoder:
    """Pack the weights layer by layer."""
    tensors, layers = encoder.tensors, encoder.layers
    relative = layers[0].relative
    matrices = [tensors.floats(name).astype(np.float64) for name in reversed(encoder.maps)]
    arrays = _embeddings(tensors, encoder.embeddings, encoder.longest)
    positions = len(arrays["positions"])
    engine = _core.NativeEncoder(
        precision=precision,
        relative=distances(tensors.floats(relative), positions) if relative else None,
        map=functools.reduce(np.matmul, matrices).astype(np.float32) if matrices else None,
        **arrays,
        **layers[0].common,
    )
    packed: dict[tuple[object, ...], int] = {}
    tables: dict[str, Floats | None] = {"": None}
    for number, layer in enumerate(layers):
        if layer.packed in packed:
            engine.repeat_layer(packed[layer.packed])
            continue
        packed[layer.packed] = number
        if (known := layer.frequencies) not in tables:
            tables[known] = rotary_table(tensors.floats(known), positions)
        weights = {name: pair(tensors, names) for name, names in layer.weights.items()}
        engine.add_layer(**weights, window=layer.window, rotary=tables[known])
        tensors.release()
    return engine


def _embeddings(tensors: Tensors, names: Embeddings, longest: int) -> Arguments:
    """Return the arguments of `NativeEncoder` for embeddings."""
    words, positions, skipped = tensors.floats(names.words), None, None
    if names.positions:
        positions = tensors.floats(names.positions)
        skipped = None if names.skipped_id < 0 else positions[names.first - 1].copy()
        positions = np.ascontiguousarray(positions[names.first :])
    return {
        # What is mapped changes with the file, and is gone with its end.
        "words": words.copy() if words.nbytes <= _KEPT_BYTES else words,
        "positions": np.empty((longest, 0), np.float32) if positions is None else positions,
        "types": tensors.floats(names.types) if names.types else None,
        "norm": pair(tensors, names.norm),
        "epsilon": names.epsilon,
        "projection": pair(tensors, names.projection) if names.projection[0] else None,
        "skipped_id": names.skipped_id,
        "skipped": skipped,
        "gated": names.modern,
        "pre_norm": names.modern,
    }
