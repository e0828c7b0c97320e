"""Turn texts into token ids with the `tokenizers` library: checked, and never silently cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError, ConfigError, Setting
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.settings import TokenizerSettings
from mirror_rt.tokens.tokenizer_file import library_errors, raise_library_error, read_tokenizer
from mirror_rt.tokens.validity import find_invalid, why_invalid
from mirror_rt.tokens.words import WordTokenizer, tokenizes_by_words

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# Real text has 1 to 6 characters per token; only runs of white space and the like have more.
_CLIP_CHARACTERS_PER_TOKEN = 64
# The second limit, for texts with even more characters per token. A text beyond it counts as cut,
# whatever the rest of it is.
_SECOND_CLIP = 16 * _CLIP_CHARACTERS_PER_TOKEN
# Tokenising a text of this length holds the global interpreter lock for less time than it takes to
# hand it over.
_SHORT_CHARACTERS = 256

Ids = npt.NDArray[np.int32]
_IDS, _OVERFLOWING = attrgetter("ids"), attrgetter("overflowing")


class Stopped(Exception):  # noqa: N818  # not an error, since the caller asked for it
    """Raised where the caller does not need the result any more."""


class TokenizedTexts(NamedTuple):
    """The token ids of n texts with special tokens, and which texts were cut."""

    tokens: RaggedTokens  # n ragged sequences of at most `max_length` ids
    truncated: list[bool]  # for each text, whether it was cut to fit


class Framed(NamedTuple):
    """The token ids of a text of any length, int32, and of the special tokens around it."""

    before: Ids
    content: Ids
    after: Ids


class TokenPiece(NamedTuple):
    """A token, and the characters `start` .. `stop` that it stands for; None if it is special."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TextTokenizer:
    """A `tokenizers.Tokenizer` with an explicit length limit instead of the one in its file.

    Args:
        tokenizer: tokenizer whose own truncation and padding are dropped, because many
            tokenizer.json files silently cut texts.
        max_length: most tokens of a text, special tokens included.
        pad_id: token id to pad with.
        copy: leave `tokenizer` unchanged, and use a copy (280 MB for a vocabulary of 250,000).
        left: cut the beginnings of long texts, with the prompt before them, and not their ends.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        pad_id: int,
        copy: bool = True,
        left: bool = False,
    ) -> None:
        self._tokenizer = tokenizer.from_str(tokenizer.to_str()) if copy else tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        name = getattr(tokenizer.model, "unk_token", None) or "<unk>"
        found = tokenizer.token_to_id(name)
        self.unknown_id = -1 if found is None else found
        """The id of the token for unknown text; -1 for none."""
        self.left_out = -1
        """The token id that is left out of every text; -1 for none."""
        self.why_empty = "it has no tokens"
        """The reason why an input has a row without tokens."""
        self._by_words: WordTokenizer | None = None
        self.pad_id = pad_id
        self.left = left
        self.limit(max_length)

    def limit(self, max_length: int) -> None:
        """Set the most tokens of a text, special tokens included; not while texts are tokenised."""
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= special:
            raise ConfigError(
                Setting("max_length"),
                f" {max_length} leaves no room for text: the tokenizer adds "
                f"{special} special tokens, so give at least {special + 1}",
            )
        # The library cuts texts, on the side that they are cut on.
        direction = "left" if self._cuts_left else "right"
        self._tokenizer.enable_truncation(max_length, direction=direction)
        self.max_length = max_length
        self.special_tokens = special
        """Special tokens that are put around a text."""
        self.clip_characters = _CLIP_CHARACTERS_PER_TOKEN * max_length
        """Most characters that are tokenised at once: 64 per token of the limit."""
        self.most_characters = _SECOND_CLIP * max_length
        """Most characters of a text that is tokenised again, as those give too few tokens."""
        self._short = min(_SHORT_CHARACTERS, self.clip_characters)

    @property
    def _cuts_left(self) -> bool:
        """Whether the library cuts texts on the left."""
        return self.left

    def _parts(self, encoding: Encoding) -> list[Encoding]:
        """Return an encoding and the parts cut off it, in the order of the text."""
        parts = [encoding, *encoding.overflowing]
        return parts[::-1] if self._cuts_left else parts

    def leave_out_special(self, *, unknown: bool) -> None:
        """Put no special tokens around texts; with `unknown`, leave unknown tokens out, too."""
        self._tokenizer.post_processor = None
        self.special_tokens = 0
        self.left_out = self.unknown_id if unknown else -1
        # A static encoder does little but tokenise, and most words come again and again.
        if tokenizes_by_words(self._tokenizer):
            self._by_words = WordTokenizer(self._encode)
        self.limit(self.max_length)

    def check_ids(self, size: int) -> None:
        """Raise BundleError if the vocabulary has an id that a table of `size` rows has not."""
        largest = max(self._tokenizer.get_vocab().values(), default=0)
        if largest >= size:
            raise BundleError(
                f"the tokenizer has the token id {largest}, and the table vectors for {size} ids"
            )

    def names_of(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of ids, as the vocabulary has them; "" for an id that it has not."""
        return [self._tokenizer.id_to_token(one) or "" for one in ids]

    def texts_of(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """Return the text of each list of token ids, with or without its special tokens."""
        return self._tokenizer.decode_batch(list(ids), skip_special_tokens=skip_special)

    @classmethod
    def from_file(
        cls, path: Path, *, max_length: int, pad_id: int, settings: TokenizerSettings | None = None
    ) -> Self:
        """Read a tokenizer.json, or a vocab.txt, with its settings, and check that it works."""
        tokenizer, left = read_tokenizer(path, settings, pad_id=pad_id)
        try:
            return cls(tokenizer, max_length=max_length, pad_id=pad_id, copy=False, left=left)
        except ConfigError as error:
            raise BundleError(f"{path} does not go with its manifest: {error}") from None

    def __call__(self, texts: Sequence[str], *, prompt: str = "") -> TokenizedTexts:
        """Tokenise valid texts (see `why_invalid`) in parallel, with `prompt` before each.

        Only the first 64 characters per token of the limit are tokenised, so that a text of 10 MB
        costs no more than one that just reaches the limit. If they give too few tokens (because of
        runs of white space), the first 1,024 characters per token are. A text of which
        not all was tokenised counts as truncated.
        """
        if self._by_words is None or max(map(len, texts), default=0) > self.clip_characters:
            encodings, truncated = self._clipped(texts, prompt, left=self._cuts_left)
            tokens = RaggedTokens.from_lists(list(map(_IDS, encodings)))
            return TokenizedTexts(tokens.without(self.left_out), truncated)
        prompted = [prompt + text for text in texts] if prompt else texts
        tokens, rest = self._by_words(prompted, self.max_length)
        truncated = [False] * len(texts)
        if len(rest):
            rows = [tokens.ids[begin:end] for begin, end in tokens.spans()]
            whole, cut = self._clipped([texts[i] for i in rest], prompt, left=self._cuts_left)
            for i, encoding, was_cut in zip(rest.tolist(), whole, cut, strict=True):
                rows[i], truncated[i] = np.array(encoding.ids, np.int32), was_cut
            tokens = RaggedTokens.from_arrays(rows)
        return TokenizedTexts(tokens.without(self.left_out), truncated)

    def find_invalid(self, inputs: Sequence[Any]) -> dict[int, str]:
        """Return index -> reason for each input that cannot be tokenised."""
        return find_invalid(inputs)

    def _clipped(
        self, texts: Sequence[str], prompt: str = "", *, special: bool = True, left: bool = False
    ) -> tuple[list[Encoding], list[bool]]:
        """Return the encoding of each text, with special tokens or without, and whether it is cut.

        With `left`, only the last characters of a long text, with the prompt before it, are
        tokenised, and not the first ones.
        """
        clip, second = self.clip_characters, self.most_characters
        kept = [_clip(prompt, text, clip, left=left) for text in texts]
        encodings = self._encode(kept, special=special)
        truncated = list(map(bool, map(_OVERFLOWING, encodings)))
        if max(map(len, texts), default=0) > clip:
            for i, text in enumerate(texts):
                if len(text) > clip and not truncated[i]:
                    rest = self.without_blank_end(text, left=left)
                    longer = _clip(prompt, rest, second, left=left)
                    encodings[i] = self._encode([longer], special=special)[0]
                    truncated[i] = bool(encodings[i].overflowing) or len(rest) > second
        return encodings, truncated

    def without_blank_end(self, text: str, *, left: bool) -> str:
        """Return a text without the parts that give no tokens: of its beginning, or of its end.

        The end is meant with `left`, where texts lose their beginnings. Whole parts of
        `clip_characters` are left out, so that a few characters of text behind very many blanks
        are found in bounded memory.
        """
        size, begin, end = self.clip_characters, 0, len(text)
        while end - begin > size:
            part = text[end - size : end] if left else text[begin : begin + size]
            if len(self.framed([part]).content):
                break
            begin, end = (begin, end - size) if left else (begin + size, end)
        return text[begin:end]

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids, which begin at 0."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def pieces(self, text: str, *, special_tokens: bool) -> list[TokenPiece]:
        """Return all tokens of a text of any length, with their positions in it."""
        with library_errors("the tokenizer failed"):
            # Encode a batch of one, because `encode` would hold the global interpreter lock.
            first = self._tokenizer.encode_batch([text])[0]
        parts = self._parts(first)
        found = [
            [
                TokenPiece(id, token, True, None, None)
                if special
                else TokenPiece(id, text[start:stop], False, start, stop)
                for id, token, special, (start, stop) in zip(
                    part.ids, part.tokens, part.special_tokens_mask, part.offsets, strict=True
                )
            ]
            for part in parts
        ]
        own = [piece for part in found for piece in part if not piece.special]
        if not special_tokens:
            return own
        before = list(takewhile(lambda piece: piece.special, found[0]))
        after = list(takewhile(lambda piece: piece.special, reversed(found[-1])))[::-1]
        return [*before, *own, *after] if own else found[0]

    def framed(self, parts: Sequence[str], stop: threading.Event | None = None) -> Framed:
        """Tokenise a text of any length, given in parts, without cutting it."""
        before = after = np.empty(0, np.int32)
        content: list[Ids] = []
        for part in parts:  # one at a time, since a part gives many encodings
            if stop is not None and stop.is_set():
                raise Stopped
            for encoding in self._parts(self._encode([part])[0]):
                ids = np.array(encoding.ids, dtype=np.int32)
                own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
                if len(own) == 0:
                    continue
                begin, end = own[0], own[-1] + 1
                before, after = ids[:begin], ids[end:]
                content.append(ids[begin:end][ids[begin:end] != self.left_out])
        return Framed(before, np.concatenate(content) if content else before, after)

    def short_ids(self, text: object, prompt: str) -> list[int] | None:
        """Return the ids of a short text that is valid and whole, after a prompt; else None."""
        if why_invalid(text) is not None:
            return None
        prompted = prompt + str(text)
        if len(prompted) > self._short:
            return None
        try:
            ids: list[int] = self._tokenizer.encode(prompted).ids
        except BaseException as error:  # noqa: BLE001 - it is raised again
            raise_library_error(error, "the tokenizer failed")
        whole = 0 < len(ids) < self.max_length and self.left_out not in ids
        return ids if whole else None

    def _encode(self, texts: list[str], *, special: bool = True) -> list[Encoding]:
        with library_errors("the tokenizer failed"):
            return self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)


def _clip(prompt: str, text: str, characters: int, *, left: bool) -> str:
    """Return the part of a text that is tokenised; the beginning of a long one loses its prompt."""
    if not left:
        return prompt + text[:characters]
    return text[-characters:] if len(text) > characters else prompt + text
