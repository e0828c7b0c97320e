"""Score documents by late interaction of token vectors (csrc/vector_ops/maxsim.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.cpus import available_cpus
from mirror_rt.errors import ConfigError
from mirror_rt.vectors.quantization import checked_ranges, unit_ranges

Floats = npt.NDArray[np.float32]
# With fewer products than this, a second thread costs more than it saves.
_WORK_PER_THREAD = 1 << 22
_TYPES = ("float32", "float16", "int8", "uint8")


def maxsim(
    queries: Sequence[npt.NDArray[Any]],
    documents: Sequence[npt.NDArray[Any]],
    *,
    ranges: npt.ArrayLike | None = None,
) -> Floats:
    """Score documents with queries by the late interaction of ColBERT (MaxSim).

    A score is the sum over the vectors of the query of their largest dot product with a vector of
    the document. Documents are never copied as a whole, and may be views of one array on disk.

    Args:
        queries: of each query its vectors, float [t, D].
        documents: of each document its vectors, all of one type: float32 or float16 [t, D], or
            codes of `quantize_embeddings`, int8 or uint8 [t, D], which stand for the middles of
            their steps.
        ranges: [2, D], ranges that the codes were made with; None for those of unit vectors.

    Returns:
        float32 [queries, documents]; -inf for a document without vectors.

    Raises:
        ConfigError: an argument has an unusable type, shape or value.
    """
    asked = [checked_query(number, one) for number, one in enumerate(queries)]
    scores = np.zeros((len(asked), len(documents)), np.float32)
    if not asked or not len(documents):
        return scores
    given, dimension = _documents(documents), asked[0].shape[1]
    check_shapes([*asked, *given], dimension)
    kind = given[0].dtype
    constants: npt.NDArray[Any] = np.zeros(len(asked))
    if kind in (np.int8, np.uint8):
        known = unit_ranges(dimension) if ranges is None else checked_ranges(ranges, dimension)
        steps = (known[1] - known[0]) / np.float32(255)
        middle = known[0] + np.float32(128.5 if kind == np.int8 else 0.5) * steps
        constants = np.array([(one @ middle).sum(dtype=np.float64) for one in asked])
        asked = [one * steps for one in asked]
    elif ranges is not None:
        raise ConfigError(f"ranges are for int8 and uint8, not {kind}")
    threads = threads_for(asked, given)
    rows = [one.view(np.uint16) for one in given] if kind == np.float16 else given
    scores = _core.max_similarities(asked, rows, threads=threads)
    return np.asarray(scores + constants[:, None], np.float32)


def check_shapes(arrays: list[npt.NDArray[Any]], dimension: int) -> None:
    """Raise ConfigError for an array that is no [t, dimension]."""
    for one in arrays:
        if one.ndim != 2 or one.shape[1] != dimension:
            raise ConfigError(
                f"queries and documents must be arrays [t, {dimension}], got {list(one.shape)}"
            )


def threads_for(queries: list[Floats], documents: Sequence[npt.NDArray[Any]]) -> int:
    """Return the number of threads that are worth starting."""
    work = sum(one.size for one in queries) * sum(map(len, documents))
    return max(1, min(available_cpus(), work // _WORK_PER_THREAD, len(documents)))


def checked_query(number: int, vectors: npt.ArrayLike) -> Floats:
    """Return the vectors of a query as float32 [t, D]; ConfigError if they are none."""
    made = np.ascontiguousarray(vectors, np.float32)
    if made.ndim != 2 or not np.isfinite(made).all():
        raise ConfigError(f"query {number} is no finite array [t, D], but {list(made.shape)}")
    return made


def _documents(documents: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    kinds = sorted(map(str, {getattr(one, "dtype", type(one).__name__) for one in documents}))
    if len(kinds) != 1 or kinds[0] not in _TYPES:
        raise ConfigError(
            f"documents are of {', '.join(kinds)}, expected one of {', '.join(_TYPES)}"
        )
    return [np.ascontiguousarray(one) for one in documents]
