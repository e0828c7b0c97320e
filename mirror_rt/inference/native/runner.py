"""A runner that computes an encoder with the native engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.errors import BundleError, ClosedError
from mirror_rt.inference.forks import forget_after_fork
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.native.engine_model import (
    EngineModel,
    Floats,
    Pair,
    UnsupportedModelError,
)
from mirror_rt.inference.native.kernel_choice import Kernels, kernels_for
from mirror_rt.inference.native.rotation import Rotation
from mirror_rt.inference.providers import NATIVE
from mirror_rt.tokens.padding import PaddedBatch

Places = npt.NDArray[np.int32]
# How often a thread that waits for another looks again before it gives up its processor.
SPINS = {"off": 0, "run": 4000, "always": 4000}
# The largest table of words of which the engine keeps a copy of its own; one of a model for a
# hundred languages stays mapped from the file, which several processes then share.
_KEPT_BYTES = 1 << 27
# The distance in tokens from which on MPNet has one bucket, as in transformers.
_MPNET_DISTANCE = 128


class NativeRunner(LoadedGraph):
    """An encoder in the native engine; safe to use from several threads, and in forked processes.

    Args:
        encoder: the encoder, as `find_encoder` found it.
        precision: of the matrix products: `fp32`, `bf16` or `int8`; the quickest kernels of this
            machine compute it.
        options: say how many threads to use, and whether they spin.

    Raises:
        UnsupportedModelError: the engine refuses a weight.
    """

    def __init__(self, encoder: EngineModel, precision: str, options: LoadOptions) -> None:
        self.graph = encoder.path
        self.providers: list[str] = [NATIVE]
        self.outputs = ["sentence_embedding", "pooled_embedding", "last_hidden_state"]
        self.devices: list[int | None] = [None]
        self._threads = options.resolved_threads
        self._spins = SPINS[options.resolved_spinning]
        self._encoder: _core.NativeEncoder | None
        self._head, self._typed = encoder.head, encoder.typed
        self._kernels = kernels_for(precision)
        try:
            self._encoder = _pack(encoder, self._kernels)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise UnsupportedModelError(f"{self.graph}: {error}") from error
        forget_after_fork(self)

    @property
    def instructions(self) -> str:
        """The kernels that compute the vectors."""
        return " ".join(self._kernels)

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D], or [rows, length, D] for the vectors of its tokens.

        Raises:
            BundleError: a token id is outside the vocabulary, a text is too long, or there is no
                memory.
            ClosedError: the runner is closed.
        """
        encoder, ids, mask = self._open(), batch.input_ids, batch.attention_mask
        tokens, normalize = output == "last_hidden_state", output == "sentence_embedding"
        try:
            vectors = encoder.run(
                ids,
                mask,
                pooling="none" if tokens else self._head.of_engine,
                normalize=normalize and self._head.is_plain,
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
            return self._head.finish(vectors, mask, normalize=normalize)
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


def _pack(encoder: EngineModel, kernels: Kernels) -> _core.NativeEncoder:
    """Pack the weights layer by layer."""
    arrays = _embeddings(encoder)
    distances, arrays["buckets"] = _distances(encoder, len(arrays["positions"]))
    encoder.release()  # the table of words was copied
    engine = _core.NativeEncoder(**kernels._asdict(), inner=encoder.inner, **encoder.kind, **arrays)
    packed: dict[str, int] = {}
    tables: dict[Rotation | None, Floats | None] = {None: None}
    for number, layer in enumerate(encoder.layers):
        if layer.place in packed:
            engine.repeat_layer(packed[layer.place])
            continue
        packed[layer.place] = number
        if layer.rotation is not None and layer.rotation not in tables:
            longest = len(arrays["positions"])
            tables[layer.rotation] = layer.rotation.table(encoder.kind["size"], longest)
        weights = {name: _read(pair) for name, pair in layer.weights.items()}  # of one layer alone
        engine.add_layer(
            **weights,
            window=layer.window,
            rotary=tables[layer.rotation],
            distances=None if distances is None else _like_tokens(distances, weights),
        )
        encoder.release()
    return engine


def _embeddings(encoder: EngineModel) -> dict[str, Any]:
    """Return the arguments of `NativeEncoder` for embeddings."""
    words, positions, skipped = encoder.words.read(), None, None
    if encoder.positions is not None:
        rows = encoder.positions.read()
        skipped = rows[encoder.first - 1].copy() if encoder.first else None
        positions = np.ascontiguousarray(rows[encoder.first :])
    else:
        positions = np.empty((encoder.longest, 0), np.float32)
    relative = None
    if encoder.relative is not None:
        relative = distances(encoder.relative.read(), len(positions))
    return {
        # Mapped memory changes with the file, and is gone with its end.
        "words": words.copy() if words.nbytes <= _KEPT_BYTES else words,
        "positions": positions,
        "types": None if encoder.types is None else encoder.types.read(),
        "norm": _read(encoder.norm),
        "projection": None if encoder.projection is None else _read(encoder.projection),
        "relative": relative,
        "skipped": skipped,
    }


def _read(pair: Pair) -> tuple[Floats, Floats]:
    weight, bias = pair
    zeros = np.zeros(weight.shape[-1], np.float32)
    return np.ascontiguousarray(weight.read()), zeros if bias is None else bias.read()


def _distances(encoder: EngineModel, positions: int) -> tuple[Floats | None, Places | None]:
    """Return the vectors of the distances that texts have, and the place of each among them."""
    if encoder.distances is None:
        return None, None
    places = buckets(*encoder.buckets, positions)
    first, last = places[[0, -1]]
    vectors = encoder.distances.read()[::-1][first : last + 1]
    return np.ascontiguousarray(vectors), places - first


@np.errstate(all="ignore")
def _like_tokens(vectors: Floats, weights: dict[str, tuple[Floats, Floats]]) -> Floats:
    """Return the queries and keys of a layer, side by side."""
    weight, bias = weights["query_key_value"]
    columns = len(bias) // 3 * 2
    made: Floats = vectors @ weight[:, :columns] + bias[:columns]
    return made


def buckets(span: int, farthest: int, positions: int) -> Places:
    """Return the place of DeBERTa's vector for each distance, [2 positions - 1], from the last."""
    key = np.arange(-positions + 1, positions)  # its place, seen from the query
    away, own = np.abs(key), span // 2
    if farthest:
        far = np.maximum(away, own).astype(np.float32) / np.float32(own)
        steps = np.log(far) / np.log(np.float32((farthest - 1) / own)) * np.float32(own - 1)
        away = np.where(away <= own, away, np.ceil(steps).astype(np.int64) + own)
    places: Places = np.clip(span - 1 + np.sign(key) * away, 0, 2 * span - 1).astype(np.int32)
    return places


def distances(relative: Floats, positions: int) -> Floats:
    """Return MPNet's bias by distance, float32 [heads, 2 positions - 1], from that by bucket."""
    buckets = len(relative) // 2
    exact = buckets // 2
    key = np.arange(-positions + 1, positions)  # its place, seen from the query
    distance = np.abs(key)
    far = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
    steps = np.log(far) / np.float32(np.log(_MPNET_DISTANCE / exact)) * np.float32(buckets - exact)
    coarse = np.minimum(exact + steps.astype(np.int64), buckets - 1)
    bucket = np.where(distance < exact, distance, coarse) + np.where(key > 0, buckets, 0)
    return np.ascontiguousarray(relative[bucket].T)
