"""Measure the geometry of an embedding space: isotropy, mean vector, alignment, uniformity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.masking import mask_span
from mirror_rt.vectors.normalization import normalize_rows

Matrix = npt.NDArray[np.float64]

_RANDOM_PAIRS = 20_000
_MASKED_CHARACTERS = 5  # k of the paper's sentence-level recipe


@dataclass(frozen=True, slots=True)
class Geometry:
    """Geometric measures of the vectors of n texts.

    Attributes:
        n: number of texts measured.
        isotropy_score: EMNLP 2021, Eq. 2, on the vectors as the encoder gives them; 1 is
            perfectly isotropic.
        isotropy_score_normalized: the same on unit vectors, comparable between models.
        isotropy_score_one_sign: the first with each eigenvector as it is computed, not with both
            signs, as the paper has it; its Table 9 is on all 10,000 texts.
        mean_vector_norm: Eq. 3, on the vectors as the encoder gives them; lower is more centred.
        alignment: mean squared distance of the unit vectors of a text and its copy with a random
            span masked (Wang and Isola 2020; positives as in section 2.2); None if the
            tokenizer has no mask token or every text is shorter than two characters.
        uniformity: log of the mean of exp(-2 squared distance) over all pairs of unit vectors
            (Wang and Isola 2020); lower is more uniform.
        mean_cosine: mean cosine of random pairs of different texts.
    """

    n: int
    isotropy_score: float
    isotropy_score_normalized: float
    isotropy_score_one_sign: float
    mean_vector_norm: float
    alignment: float | None
    uniformity: float
    mean_cosine: float


def evaluate_geometry(model: EmbeddingModel, texts: list[str], *, seed: int = 0) -> Geometry:
    """Measure the embedding space of `texts`.

    Raises:
        DataError: there are fewer than two distinct texts.
    """
    return measure_geometry(model, texts, seed)[0]


def measure_geometry(
    model: EmbeddingModel, texts: list[str], seed: int
) -> tuple[Geometry, Matrix | None, Matrix]:
    """Do as `evaluate_geometry`, and return the cosines of positives and of random pairs as well.

    The positives are those of `masked_cosines`, the random pairs those of `cosine_pairs`.
    """
    texts = list(dict.fromkeys(texts))
    if len(texts) < 2:
        raise DataError(f"geometry needs at least 2 distinct texts, got {len(texts)}")
    vectors = model.encode(texts, normalize_embeddings=False).astype(np.float64)
    unit = normalize_rows(vectors)
    negatives = cosine_pairs(unit, pairs=_RANDOM_PAIRS, seed=seed)
    positives = masked_cosines(model, texts, seed=seed)
    geometry = Geometry(
        n=len(texts),
        isotropy_score=isotropy_score(vectors),
        isotropy_score_normalized=isotropy_score(unit),
        isotropy_score_one_sign=isotropy_score(vectors, both_signs=False),
        mean_vector_norm=mean_vector_norm(vectors),
        # |x - y|^2 = 2 - 2 cos(x, y) for unit vectors.
        alignment=None if positives is None else float(2 - 2 * positives.mean()),
        uniformity=uniformity(unit),
        mean_cosine=float(negatives.mean()),
    )
    return geometry, positives, negatives


def isotropy_score(vectors: Matrix, *, both_signs: bool = True) -> float:
    """Compute IS of EMNLP 2021, Eq. 2 (Mu and Viswanath 2018): min over max of sum exp(c.v).

    c runs over the eigenvectors of V^T V (V is `vectors`, [n, D]), with both signs, because the
    sign of an eigenvector is arbitrary and the score must not depend on it. The paper's own figures
    have one sign, whichever LAPACK gives.
    """
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    if both_signs:
        directions = np.concatenate([directions, -directions], axis=1)
    projections = vectors @ directions
    top = projections.max(axis=0)
    log_partition = top + np.log(np.exp(projections - top).sum(axis=0))
    return float(np.exp(log_partition.min() - log_partition.max()))


def mean_vector_norm(vectors: Matrix) -> float:
    """Compute MVN of EMNLP 2021, Eq. 3: the norm of the mean of `vectors` (float64 [n, D])."""
    return float(np.linalg.norm(vectors.mean(axis=0)))


def uniformity(unit: Matrix) -> float:
    """Return log mean exp(-2 |x - y|^2) over all pairs of unit vectors (Wang and Isola 2020)."""
    n = len(unit)
    total = 0.0
    for start in range(0, n, 1024):
        cosine = unit[start : start + 1024] @ unit.T
        total += float(np.exp(4 * np.minimum(cosine, 1) - 4).sum())
    return float(np.log(max(total - n, np.finfo(np.float64).tiny) / (n * (n - 1))))


def cosine_pairs(unit: Matrix, *, pairs: int, seed: int) -> Matrix:
    """Return the cosines of `pairs` random pairs of different rows of `unit`, float64 [pairs]."""
    rng = np.random.default_rng(seed)
    first = rng.integers(len(unit), size=pairs)
    second = (first + rng.integers(1, len(unit), size=pairs)) % len(unit)
    return np.asarray(np.einsum("nd,nd->n", unit[first], unit[second]))


def masked_cosines(model: EmbeddingModel, texts: list[str], *, seed: int = 0) -> Matrix | None:
    """Return the cosine of each text of at least two characters with a copy with a masked span.

    It is None if the tokenizer has no mask token or no text is long enough.
    """
    if model.mask_token is None:
        return None
    rng = np.random.default_rng(seed)
    long = [text for text in texts if len(text) >= 2]
    if not long:
        return None
    masked = [
        mask_span(
            text, length=_MASKED_CHARACTERS, mask_token=model.mask_token, rng=rng, method="half"
        )
        for text in long
    ]
    vectors = (normalize_rows(model.encode(some).astype(np.float64)) for some in (long, masked))
    return np.asarray(np.einsum("nd,nd->n", *vectors))
