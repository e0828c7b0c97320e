"""Check parity: an exported bundle must give the same vectors as PyTorch, over real texts."""

from __future__ import annotations

import bisect
import math
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import cycle, islice
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.manifest import Precision
from mirror_rt.encoding.batch_encoder import BatchEncoder, Vectors
from mirror_rt.errors import ParityError
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import EncodedTexts, Pipeline
from mirror_rt.reranking.reranker import Reranker
from mirror_rt.sparse.sparse_encoder import SparseEncoder
from mirror_rt.tokens.pairs import Pair
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_rt.tokens.windows import text_windows

# First word and number of words of each passage from the sample.
_PASSAGES = [(start, count) for count in (15, 30, 60, 90, 120, 160, 200) for start in (0, 90, 180)]
# If a language gives fewer texts than this, texts of all languages are added.
_ENOUGH = 100
# Languages written without spaces between words; a character counts as a word.
_UNSPACED = ("ja", "th", "zh")
# Pairs to compare on are made of neighbours, and of texts far apart.
_APART = (1, 7, 31)
# Small, so that the sample gives many batches with different padding.
BATCH = 8

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gate:
    """The limits that unit vectors, or the logits of pairs, must satisfy; None sets no limit.

    Attributes:
        max_difference: largest allowed absolute difference of any component, or logit.
        mean_cosine: smallest allowed mean, over the texts, of the cosine of the two vectors.
        min_cosine: smallest allowed cosine of any text.
        correlation: smallest allowed Pearson correlation of the logits.
    """

    max_difference: float | None = None
    mean_cosine: float | None = None
    min_cosine: float | None = None
    correlation: float | None = None


GATES: dict[Precision, Gate] = {
    "fp32": Gate(max_difference=1e-4),
    "fp16": Gate(mean_cosine=0.9999),
    "bf16": Gate(mean_cosine=0.9999, min_cosine=0.999),
    "int8": Gate(mean_cosine=0.99, min_cosine=0.97),
}
# A correlation is the cosine of two lists of logits, each without its mean: an order and distances
# between scores are all that a cross-encoder is asked for. So the limits are those of mean cosines.
SCORE_GATES: dict[Precision, Gate] = {
    "fp32": Gate(max_difference=1e-4),
    "fp16": Gate(correlation=0.9999),
    "bf16": Gate(correlation=0.9999),
    "int8": Gate(correlation=0.99),
}


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The comparison of a graph with PyTorch over some texts, or pairs of them.

    Attributes:
        texts: number of texts or pairs.
        min_tokens: number of tokens of the shortest text.
        max_tokens: number of tokens of the longest text.
        max_difference: largest absolute difference of a component of unit vectors, or of a logit.
        mean_cosine: mean over the texts of the cosine of the two vectors; None for pairs.
        min_cosine: lowest of those cosines.
        gate: the limits to satisfy.
        correlation: Pearson's, of the logits of pairs, each label's mean removed; None for texts.
    """

    texts: int
    min_tokens: int
    max_tokens: int
    max_difference: float
    mean_cosine: float | None
    min_cosine: float | None
    gate: Gate = GATES["fp32"]
    correlation: float | None = None

    def failures(self) -> list[str]:
        """Describe the values that fail the gate; NaN always fails."""
        found = []
        for name, allowed in _asked(self.gate).items():
            value = getattr(self, name)
            within = value <= allowed if name == "max_difference" else value >= allowed
            if not within:
                words, limit = name.replace("_", " "), "at most" if "max" in name else "at least"
                found.append(f"{words} {value:.4g}, {limit} {allowed:g} is allowed")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for mirror.json, with None for NaN and infinity, which JSON lacks."""
        values = asdict(self) | {"gate": _asked(self.gate), "passed": not self.failures()}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def check(self, name: str = "fp32") -> None:
        """Raise a ParityError that names the variant `name` if the gate is failed."""
        if failures := self.failures():
            raise ParityError(
                f"variant {name} differs from PyTorch over {self.texts} texts: "
                f"{'; '.join(failures)}; the bundle was not written (--force writes it)"
            )


def check_parity(
    reference: BatchEncoder, exported: BatchEncoder, texts: list[str], gate: Gate = GATES["fp32"]
) -> ParityReport:
    """Encode `texts` with both encoders and compare the vectors."""
    expected = encode_compared(reference.pipeline, texts, normalize_embeddings=True)
    return compare(expected.embeddings, exported, texts, gate)


def encode_compared(
    pipeline: Pipeline, texts: list[Any], **options: Unpack[EncodeKeywords]
) -> EncodedTexts:
    """Encode texts, or pairs, to compare on; nothing is said of those that are cut."""
    given: EncodeKeywords = {**options, "batch_size": BATCH, "prompt": ""}
    plan = pipeline.plan(**given)._replace(tells_of_cut=False)
    windows = text_windows(texts, invalid=pipeline.tokenizer.find_invalid(texts))
    return pipeline.encode(windows, plan)


def compare(
    expected: Vectors,
    exported: BatchEncoder | SparseEncoder,
    texts: list[str],
    gate: Gate = GATES["fp32"],
) -> ParityReport:
    """Compare the vectors that `exported` gives with `expected`, unit, float32 [n, D]."""
    found = encode_compared(exported.pipeline, texts, normalize_embeddings=True, errors="nan")
    a, b = _exact(expected, found)
    cosine = np.einsum("nd,nd->n", a, b)
    means = float(cosine.mean()), float(cosine.min())
    return ParityReport(*_sizes(found, a - b), *means, gate)


def compare_scores(
    expected: Vectors, exported: Reranker, pairs: list[Pair], precision: Precision
) -> ParityReport:
    """Compare the logits of pairs with `expected`, float32 [n, C]."""
    found = encode_compared(exported.pipeline, pairs, errors="nan")
    a, b = _exact(expected, found)
    centred_a, centred_b = a - a.mean(axis=0), b - b.mean(axis=0)
    norms = np.linalg.norm(centred_a) * np.linalg.norm(centred_b)
    correlation = float((centred_a * centred_b).sum() / norms) if norms else math.nan
    return ParityReport(*_sizes(found, a - b), None, None, SCORE_GATES[precision], correlation)


def _exact(expected: Vectors, found: EncodedTexts) -> tuple[Doubles, Doubles]:
    return expected.astype(np.float64), found.embeddings.astype(np.float64)


def _sizes(found: EncodedTexts, differences: Doubles) -> tuple[int, int, int, float]:
    """Return the first fields of a report on n texts, of their tokens and differences [n, D]."""
    lengths, largest = found.token_counts, float(np.abs(differences).max())
    return len(lengths), int(lengths.min()), int(lengths.max()), largest


def _asked(gate: Gate) -> dict[str, float]:
    return {name: value for name, value in asdict(gate).items() if value is not None}


def parity_texts(tokenizer: TextTokenizer, language: str | None = None) -> list[str]:
    """Return texts whose lengths range from one word to the tokenizer's limit.

    They are sentences of the Universal Declaration of Human Rights, words of these, and passages
    made of them, the longest as long as the limit allows.

    Args:
        tokenizer: tokenizer of the bundle, with its limit.
        language: ISO 639-1 code; a region after it is ignored. None, or a language that the sample
            does not have, stands for all of the sample's languages.
    """
    lines = _lines()
    everything = _texts(tokenizer, [sentence for _, sentence in lines], " ", every=5)
    code = (language or "").lower().replace("_", "-").partition("-")[0]
    own = [sentence for of, sentence in lines if of == code]
    if not own:
        return everything
    texts = _texts(tokenizer, own, "" if code in _UNSPACED else " ", every=1)
    others = [sentence for _, sentence in lines] + everything
    more = [text for text in dict.fromkeys(others) if text not in texts]
    return texts + more[: max(0, _ENOUGH - len(texts))]


def parity_pairs(texts: list[str]) -> list[Pair]:
    """Return pairs of texts to compare on, from short ones to those that are cut."""
    n = len(texts)
    return [
        Pair(texts[i], texts[(i + gap) % n]) for gap in _APART for i in range(0, n, len(_APART))
    ]


def _lines() -> list[tuple[str, str]]:
    """Return the language and the sentence of every line of the sample."""
    sample = resources.files("mirror_export") / "parity_sample.txt"
    rows = (line.split("\t") for line in sample.read_text("utf-8").splitlines())
    return [(code, sentence) for code, sentence in rows]


def _texts(tokenizer: TextTokenizer, sentences: list[str], gap: str, every: int) -> list[str]:
    """Return one in `every` words, all sentences, and passages of words joined by `gap`."""
    words = " ".join(sentences).split() if gap else list("".join(sentences))
    texts = [[word] for word in sorted(set(words))[::every]]
    texts += [sentence.split() if gap else list(sentence) for sentence in sentences]
    longest = 2 * tokenizer.max_length  # in words: a token may be two characters
    for start, count in [*_PASSAGES, (0, longest), (150, longest)]:
        first = start % len(words)
        texts.append(list(islice(cycle(words), first, first + count)))
    return list(dict.fromkeys(_fit(tokenizer, text, gap) for text in texts))


def _fit(tokenizer: TextTokenizer, words: list[str], gap: str) -> str:
    """Return the longest run of words from the start that is not truncated, at least one word."""
    if not tokenizer([gap.join(words)]).truncated[0]:
        return gap.join(words)
    first_cut = bisect.bisect_left(
        range(1, len(words)),
        True,
        key=lambda count: bool(tokenizer([gap.join(words[:count])]).truncated[0]),
    )
    return gap.join(words[: max(1, first_cut)])
