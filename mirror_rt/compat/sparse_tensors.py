"""Turn sparse vectors into the tensors of sentence-transformers, and tensors into vectors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from mirror_rt.compat.arguments import as_tensor
from mirror_rt.errors import ConfigError
from mirror_rt.sparse.vectors import SparseVectors


def as_embeddings(
    vectors: SparseVectors, *, one: bool = False, sparse: bool = True, stacked: bool = True
) -> Any:
    """Return sparse vectors as tensors where torch is imported.

    Elsewhere they stay what they are, and dense ones are arrays.

    Args:
        vectors: the vectors.
        one: return the first one alone.
        sparse: return sparse tensors, and no dense ones.
        stacked: return one tensor [n, V], and no list of them.
    """
    torch = sys.modules.get("torch")
    found: Any = vectors if sparse else vectors.toarray()
    if torch is not None and sparse:
        rows = np.repeat(np.arange(len(vectors)), np.diff(vectors.indptr))
        places = torch.from_numpy(np.stack([rows, vectors.indices.astype(np.int64)]))
        checked = {"check_invariants": False, "is_coalesced": True}
        found = torch.sparse_coo_tensor(places, as_tensor(vectors.values), vectors.shape, **checked)
    elif torch is not None:
        found = as_tensor(found)
    if one:
        return found[0]
    return found if stacked else [found[i] for i in range(len(vectors))]


def as_rows(embeddings: Any) -> tuple[SparseVectors, bool]:
    """Return embeddings in compressed rows, and whether they are those of one text alone.

    Args:
        embeddings: `SparseVectors`, an array or a tensor, sparse or dense, [n, V] or [V]; or a list
            of [V].
    """
    if isinstance(embeddings, SparseVectors):
        return embeddings, False
    if isinstance(embeddings, list) and embeddings:
        rows = [as_rows(row)[0] for row in embeddings]
        return SparseVectors.join([row[0] for row in rows], rows[0].size), False
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(embeddings, torch.Tensor):
        tensor = embeddings.detach().cpu()
        tensor = (tensor if tensor.is_sparse else tensor.to_sparse()).coalesce()
        places, values = tensor.indices().numpy(), tensor.values().float().numpy()
    elif isinstance(embeddings, np.ndarray):
        places = np.stack(np.nonzero(embeddings))
        values = embeddings[tuple(places)].astype(np.float32)
    else:
        kind = type(embeddings).__name__
        raise ConfigError(f"Expected torch.Tensor, an array or SparseVectors, got {kind}")
    *number, size = embeddings.shape
    if len(number) > 1:
        raise ConfigError(f"Input tensor must be 1D or 2D, got {len(number) + 1}D.")
    counts = np.bincount(places[0], minlength=number[0]) if number else [len(values)]
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return SparseVectors(ends, places[-1].astype(np.int32), values, size), not number
