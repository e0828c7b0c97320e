"""Provide real texts to compare on: words, sentences and passages, in one language or in all."""

from __future__ import annotations

import bisect
from importlib import resources
from itertools import cycle, islice

from mirror_rt.tokens.tokenization import TextTokenizer

# First word and number of words of each passage from the sample.
_PASSAGES = [(start, count) for count in (15, 30, 60, 90, 120, 160, 200) for start in (0, 90, 180)]
# If a language gives fewer texts than this, texts of all languages are added.
_ENOUGH = 100
# Languages written without spaces between words; a character counts as a word.
_UNSPACED = ("ja", "th", "zh")


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
