"""Text to token ids with the `tokenizers` library: checked, and never cut in silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.tokens import RaggedTokens

__all__ = ["TextTokenizer", "TokenizedTexts", "why_invalid"]

# Real text has 1 to 6 characters a token; only runs of white space and the like have more.
_CLIP_CHARACTERS_PER_TOKEN = 64


def why_invalid(text: object) -> str | None:
    """Say why `text` cannot be encoded, or None if it can be."""
    if not isinstance(text, str):
        return f"expected str, got {type(text).__name__}"
    if not text or text.isspace():
        return "the string is empty" if not text else "the string is only white space"
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        return f"lone surrogate U+{code:04X} at character {error.start} is not valid Unicode"
    return None


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Token ids with special tokens, and which texts were cut.

    Attributes:
        tokens: n ragged sequences of at most `max_length` ids.
        truncated: bool [n], True where text was cut to fit.
    """

    tokens: RaggedTokens
    truncated: npt.NDArray[np.bool_]


class TextTokenizer:
    """A `tokenizers.Tokenizer` with a length limit and no settings of its own hidden in a file.

    Args:
        tokenizer: truncation and padding found in it are dropped, because many tokenizer.json
            files cap texts in silence.
        max_length: most tokens of a text, special tokens included.
        pad_id: token id to pad with.
        copy: leave `tokenizer` as it is, and work on a copy (280 MB for a vocabulary of 250,000).

    Raises:
        ConfigError: `max_length` leaves no room for a token beside the special ones.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_length: int, pad_id: int, copy: bool = True
    ) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str()) if copy else tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= special:
            raise ConfigError(
                f"max_length {max_length} leaves no room for text: the tokenizer adds "
                f"{special} special tokens, so give at least {special + 1}"
            )
        self._tokenizer.enable_truncation(max_length)
        self.max_length = max_length
        self.pad_id = pad_id

    @classmethod
    def from_file(cls, path: Path, *, max_length: int, pad_id: int) -> TextTokenizer:
        """Read a tokenizer.json; BundleError where it is not one."""
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise BundleError(f"{path} is not a tokenizer file: {error}") from error
        return cls(tokenizer, max_length=max_length, pad_id=pad_id, copy=False)

    def __call__(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenise valid texts (see `why_invalid`), in parallel.

        A text of more than 64 characters a token of the limit is cut there first, so one of
        10 MB costs no more than a long one; it counts as truncated.
        """
        clip = _CLIP_CHARACTERS_PER_TOKEN * self.max_length
        try:
            encodings = self._tokenizer.encode_batch_fast([text[:clip] for text in texts])
        except Exception as error:
            # The library raises bare Exception, where its own file is inconsistent.
            raise BundleError(f"the tokenizer failed: {error}") from error
        truncated = [
            bool(encoding.overflowing) or len(text) > clip
            for encoding, text in zip(encodings, texts, strict=True)
        ]
        return TokenizedTexts(
            RaggedTokens.from_lists([encoding.ids for encoding in encodings]),
            np.array(truncated, dtype=np.bool_),
        )
