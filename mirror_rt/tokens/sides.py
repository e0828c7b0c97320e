"""Tokenise the queries and the documents of a late-interaction model, as PyLate does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.schema import at_most, between
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.settings import TokenizerSettings
from mirror_rt.tokens.tokenization import Ids, TextTokenizer, TokenizedTexts
from mirror_rt.tokens.tokenizer_file import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_Tokens = Annotated[int, between(0, 1_048_576)]
_Token = Annotated[str, at_most(1000, "characters")]


@dataclass(frozen=True, slots=True)
class TextSide:
    """How the queries, or the documents, become tokens, and which of these get vectors.

    Attributes:
        max_length: most tokens of a text, special tokens and the prefix included.
        prefix: a token that is inserted behind the first one; None for none.
        prompt: name of the prompt that is put before every text; None for that of the model.
        least: number of tokens that a shorter text is filled up to; 0 for none.
        filler: the token that it is filled up with.
        attended: whether the other tokens attend to those, as those do to the others.
        skipped: tokens that get no vector.
    """

    max_length: _Tokens
    prefix: _Token | None = None
    prompt: _Token | None = None
    least: _Tokens = 0
    filler: _Token | None = None
    attended: bool = True
    skipped: Annotated[list[_Token], at_most(65_536, "tokens")] = field(default_factory=list)


class SideTokenizer(TextTokenizer):
    """A tokenizer of queries, or of documents.

    It cuts texts, inserts a prefix behind the first token, and fills short texts up. A token that
    no other attends to is stored as the complement of its id, like one of type 1 of a pair.

    Args:
        tokenizer: the tokenizer of both sides, which share it.
        side: the settings of these texts.
        longest: most tokens of a text of any side.
        pad_id: token id to pad with.
        left: cut the beginnings of long texts.

    Attributes:
        skipped: int32, the ids of tokens that get no vector. Words that are no token are none.

    Raises:
        ConfigError: the tokenizer lacks the prefix or the filler, or there is no room for text.
    """

    def __init__(
        self, tokenizer: Tokenizer, side: TextSide, *, longest: int, pad_id: int, left: bool
    ) -> None:
        super().__init__(tokenizer, max_length=longest, pad_id=pad_id, copy=False, left=left)
        self._prefix = np.array([] if side.prefix is None else [self._id(side.prefix)], np.int32)
        self._room = side.max_length - len(self._prefix)
        if self._room <= self.special_tokens:
            raise ConfigError(f"its limit of {side.max_length} tokens leaves no room for text")
        before, _, after = self.framed(["a"])
        self._before, self._after = len(before), len(after)
        filler = 0 if side.filler is None else self._id(side.filler)
        self._fillers = np.full(side.least, filler if side.attended else ~filler, np.int32)
        known = map(tokenizer.token_to_id, side.skipped)
        self.skipped = np.array([one for one in known if one is not None], np.int32)
        # Messages name it, and the length of a prompt is compared with it.
        self.max_length = side.max_length

    def _id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ConfigError(f"it has no token {token!r}, which texts get")
        return found

    def short_ids(self, text: object, prompt: str) -> list[int] | None:
        """Return None: no text is its tokens alone."""
        return None

    def __call__(self, texts: Sequence[str], *, prompt: str = "") -> TokenizedTexts:
        """Tokenise valid texts, see `TextTokenizer`."""
        tokens, truncated = super().__call__(texts, prompt=prompt)
        rows = [self._row(tokens.ids[begin:end]) for begin, end in tokens.spans()]
        long = (tokens.lengths > self._room).tolist()
        cut = [before or now for before, now in zip(truncated, long, strict=True)]
        return TokenizedTexts(RaggedTokens.from_arrays(rows), cut)

    def without_extension(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenise valid texts, without the prefix and the tokens that they are filled up with."""
        tokens, truncated = super().__call__(texts)
        rows = [self._cut(tokens.ids[begin:end]) for begin, end in tokens.spans()]
        return TokenizedTexts(RaggedTokens.from_arrays(rows), truncated)

    def _row(self, ids: Ids) -> Ids:
        ids = self._cut(ids)
        missing = self._fillers[len(ids) + len(self._prefix) :]
        return np.concatenate([ids[:1], self._prefix, ids[1:], missing])

    def _cut(self, ids: Ids) -> Ids:
        if (over := len(ids) - self._room) > 0:
            first = self._before if self.left else self._room - self._after
            ids = np.delete(ids, np.s_[first : first + over])
        return ids


def read_sides(
    path: Path, sides: Mapping[str, TextSide], *, pad_id: int, settings: TokenizerSettings | None
) -> dict[str, SideTokenizer]:
    """Read the tokenizer of a file once, and make one of it for each side."""
    tokenizer, left = read_tokenizer(path, settings, pad_id=pad_id)
    longest = max(side.max_length for side in sides.values())
    options: dict[str, Any] = {"longest": longest, "pad_id": pad_id, "left": left}
    try:
        return {name: SideTokenizer(tokenizer, side, **options) for name, side in sides.items()}
    except ConfigError as error:
        raise BundleError(f"{path} does not go with its model: {error}") from None
