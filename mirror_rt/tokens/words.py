"""Tokenise texts word by word, and each word once (csrc/tokens/words.cpp)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.tokens.padding import RaggedTokens

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# Some 10 MB, where as many differ: a window of texts has 20,000 words or fewer.
_MOST_WORDS = 1 << 16
_LOCAL_NORMALIZERS = (None, "BertNormalizer", "Lowercase")


def tokenizes_by_words(tokenizer: Tokenizer) -> bool:
    """Tell whether the tokens of a text are those of its words, which spaces end, in any text.

    BERT's tokenizer normalises characters by themselves, and cuts texts at white space before
    anything else. A token that was added is searched in the whole text, but none with a space in it
    reaches over a space.
    """
    parts = json.loads(tokenizer.to_str())
    kinds = [(parts[name] or {}).get("type") for name in ("model", "pre_tokenizer", "normalizer")]
    return (
        kinds[:2] == ["WordPiece", "BertPreTokenizer"]
        and kinds[2] in _LOCAL_NORMALIZERS
        and all(
            token["content"].isascii() and not set(token["content"]) & set(" \t\r\n")
            for token in parts["added_tokens"]
        )
    )


class WordTokenizer:
    """Joins the token ids of the words of texts; safe to use from several threads.

    Args:
        encode: tokenises texts, without special tokens around them.
    """

    def __init__(self, encode: Callable[[list[str]], list[Encoding]]) -> None:
        self._encode = encode
        self._words = _core.WordIds(most=_MOST_WORDS)

    def __deepcopy__(self, memo: dict[int, Any]) -> WordTokenizer:
        return WordTokenizer(copy.deepcopy(self._encode, memo))

    def __call__(
        self, texts: Sequence[str], max_length: int
    ) -> tuple[RaggedTokens, npt.NDArray[np.int64]]:
        """Return the ids of texts of at most `max_length` tokens, and which texts are others.

        Those are longer, or have a word that is too long to be kept; their rows are empty.
        """
        given = list(texts)
        ids, offsets, rest, unknown = self._words.find(given, most_tokens=max_length)
        if unknown:
            for word, encoding in zip(unknown, self._encode(unknown), strict=True):
                if not encoding.overflowing:
                    self._words.add(word, encoding.ids)
            ids, offsets, rest, _ = self._words.find(given, most_tokens=max_length)
        return RaggedTokens(ids, offsets), rest
