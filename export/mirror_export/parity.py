"""Parity: the exported bundle must give the vectors that PyTorch gives."""

from __future__ import annotations

import bisect
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import numpy as np

from mirror_rt.encoding import BatchEncoder, Vectors
from mirror_rt.errors import ParityError
from mirror_rt.tokenization import TextTokenizer

# (first word, words) of passages from the sample.
_PASSAGES = [(start, count) for count in (15, 30, 60, 90, 120, 160, 200) for start in (0, 90, 180)]

__all__ = [
    "MAX_DIFFERENCE",
    "PARITY_BATCH",
    "ParityReport",
    "check_parity",
    "compare",
    "parity_texts",
]

# A small budget of tokens, so that the sample gives many batches of mixed padding.
PARITY_BATCH = 8

# Largest difference of any component of unit vectors, float32 against float32.
MAX_DIFFERENCE = 1e-4


@dataclass(frozen=True, slots=True)
class ParityReport:
    """Comparison of a bundle with PyTorch over n texts.

    Attributes:
        texts: how many.
        min_tokens: tokens of the shortest text.
        max_tokens: tokens of the longest.
        max_difference: largest absolute difference of a component of unit vectors.
        min_cosine: lowest cosine of the two vectors of one text.
        mean_cosine: mean of them.
        tolerance: what `max_difference` may be at most.
    """

    texts: int
    min_tokens: int
    max_tokens: int
    max_difference: float
    min_cosine: float
    mean_cosine: float
    tolerance: float = MAX_DIFFERENCE

    def to_dict(self) -> dict[str, Any]:
        """Plain values for mirror.json."""
        return asdict(self)

    def check(self) -> None:
        """Raise ParityError where the difference is over the tolerance, or not a number."""
        if not self.max_difference <= self.tolerance:
            raise ParityError(
                f"the exported graph differs from PyTorch by {self.max_difference:.2e} (allowed "
                f"{self.tolerance:.0e}) over {self.texts} texts; the bundle was not written"
            )


def check_parity(reference: BatchEncoder, exported: BatchEncoder, texts: list[str]) -> ParityReport:
    """Encode `texts` with both and compare."""
    expected = reference.encode(texts, batch_size=PARITY_BATCH, normalize_embeddings=True)
    return compare(expected, exported, texts)


def compare(expected: Vectors, exported: BatchEncoder, texts: list[str]) -> ParityReport:
    """Compare what `exported` gives for `texts` with float32 unit vectors [n, D]."""
    lengths = [len(ids) for ids in exported.tokenize(texts)]
    expected = expected.astype(np.float64)
    found = exported.encode(texts, batch_size=PARITY_BATCH, normalize_embeddings=True)
    found = found.astype(np.float64)
    cosine = np.einsum("nd,nd->n", expected, found)
    return ParityReport(
        texts=len(texts),
        min_tokens=min(lengths),
        max_tokens=max(lengths),
        max_difference=float(np.abs(expected - found).max()),
        min_cosine=float(cosine.min()),
        mean_cosine=float(cosine.mean()),
    )


def parity_texts(tokenizer: TextTokenizer) -> list[str]:
    """Real strings in many languages and lengths: words, sentences, and passages.

    The sentences of the sample (from the Universal Declaration of Human Rights), their words,
    and passages of them, the longest as long as the tokenizer's limit allows.
    """
    sample = resources.files("mirror_export") / "parity_sample.txt"
    sentences = [line for line in sample.read_text("utf-8").splitlines() if line.strip()]
    words = " ".join(sentences).split()
    passages = [words[start : start + count] for start, count in _PASSAGES]
    passages += [(words[start:] + words)[: tokenizer.max_length] for start in (0, 150)]
    texts = sorted(set(words))[::4] + sentences + [" ".join(part) for part in passages]
    return [_fit(tokenizer, text) for text in texts]


def _fit(tokenizer: TextTokenizer, text: str) -> str:
    """Longest run of words from the start of `text` that is not cut (at least one word)."""
    if not tokenizer([text]).truncated[0]:
        return text
    words = text.split()
    first_cut = bisect.bisect_left(
        range(1, len(words)),
        True,
        key=lambda count: bool(tokenizer([" ".join(words[:count])]).truncated[0]),
    )
    return " ".join(words[: max(1, first_cut)])
