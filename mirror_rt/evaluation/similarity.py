"""Compare with human similarity scores: word similarity and STS (EMNLP 2021, section 3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.pairs import ScoredPairs
from mirror_rt.evaluation.statistics import spearman


def evaluate_similarity(model: EmbeddingModel, pairs: ScoredPairs) -> float:
    """Return Spearman's rho between the cosines of the pairs and their human scores."""
    return spearman(cosines(model, pairs.first, pairs.second), pairs.scores)


def cosines(
    model: EmbeddingModel,
    first: list[str],
    second: list[str],
    second_model: EmbeddingModel | None = None,
) -> npt.NDArray[np.float64]:
    """Return the cosine of each pair of texts, float64 [n]; each distinct text is encoded once.

    The second texts may have an encoder of their own, such as another language's.
    """
    if second_model is None:
        texts = list(dict.fromkeys(first + second))
        vectors = _unit(model, texts)
        row = {text: i for i, text in enumerate(texts)}
        left = vectors[[row[text] for text in first]]
        right = vectors[[row[text] for text in second]]
    else:
        left, right = _unit(model, first), _unit(second_model, second)
    if left.shape[1] != right.shape[1]:
        raise DataError(
            f"vectors of {left.shape[1]} and of {right.shape[1]} dimensions have no cosine"
        )
    return np.asarray(np.einsum("nd,nd->n", left, right))


def _unit(model: EmbeddingModel, texts: list[str]) -> npt.NDArray[np.float64]:
    return model.encode(texts, normalize_embeddings=True).astype(np.float64)
