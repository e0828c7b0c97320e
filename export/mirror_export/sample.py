"""Real strings to compare on: words, sentences and passages, in the bundle's language or in all."""

from __future__ import annotations

import bisect
from importlib import resources
from itertools import cycle, islice

from mirror_rt.tokenization import TextTokenizer

__all__ = ["parity_texts"]

# (first word, words) of passages from the sample.
_PASSAGES = [(start, count) for count in (15, 30, 60, 90, 120, 160, 200) for start in (0, 90, 180)]
# A language of few sentences is joined by sentences in others, up to so many texts.
_ENOUGH = 100


def parity_texts(tokenizer: TextTokenizer, language: str | None = None) -> list[str]:
    """Return texts from one word to the tokenizer's limit.

    They are sentences of the Universal Declaration of Human Rights, their words, and passages of
    them, the longest as long as the limit allows.

    Args:
        tokenizer: with the limit.
        language: ISO 639-1 code, a region after it ignored; None, or one that the sample does not
            have, for all of the sample's languages.
    """
    lines = _lines()
    everything = [sentence for _, sentence in lines]
    wanted = language.lower().replace("_", "-").partition("-")[0] if language else None
    own = [sentence for code, sentence in lines if code == wanted]
    if not own:
        texts = _texts(everything, tokenizer.max_length, every=5)
    else:
        texts = _texts(own, tokenizer.max_length, every=1)
        texts += [text for text in everything if text not in own][: max(0, _ENOUGH - len(texts))]
    return [_fit(tokenizer, text) for text in texts]


def _lines() -> list[tuple[str, str]]:
    """(language, sentence) of every line of the sample."""
    sample = resources.files("mirror_export") / "parity_sample.txt"
    rows = (line.split("\t") for line in sample.read_text("utf-8").splitlines())
    return [(code, sentence) for code, sentence in rows]


def _texts(sentences: list[str], longest: int, every: int) -> list[str]:
    words = " ".join(sentences).split()

    def passage(start: int, count: int) -> str:
        first = start % len(words)
        return " ".join(islice(cycle(words), first, first + count))

    passages = [passage(*place) for place in [*_PASSAGES, (0, longest), (150, longest)]]
    return sorted(set(words))[::every] + sentences + passages


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
