"""Turn pairs of texts, a query and a document each, into the rows of tokens of a cross-encoder."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError, ConfigError, Setting
from mirror_rt.tokens.chunking import last_chunk
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import TextTokenizer, TokenizedTexts
from mirror_rt.tokens.tokenizer_file import MOST_ID, library_errors
from mirror_rt.tokens.validity import why_invalid

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = npt.NDArray[np.int32]
Truncation = Literal["longest_first", "only_second"]

# Special tokens, the query's own, special tokens, the document's own, special tokens.
_FORM = re.compile("(-*)(0+)(-*)(1+)(-*)")
# A letter alone may be removed by the rules for another script.
_PROBES = ("a", "я 1 的 .")


# The template of Qwen3-Reranker's model card.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class Pair(NamedTuple):
    """A query and a document, and which of them is cut where they have too many tokens."""

    query: str  # the first text
    document: str | None  # the second text; None for a text alone, as classifiers of texts take it
    # `longest_first` cuts the longer one until both are of one length, and then both, as
    # transformers does; `only_second` keeps the whole query.
    truncation: Truncation = "longest_first"
    left: bool = False  # cut the beginnings of texts in place of their ends


def as_pair(item: Any, truncation: Truncation = "longest_first") -> Any:
    """Return a tuple or list of two things as a `Pair`; anything else as it is.

    Only a `Pair` says that there is no document: in a tuple, None is a document that is missing.
    """
    if isinstance(item, Pair) or why_no_pair(item) or item[1] is None:
        return item
    query, document = item
    return Pair(query, document, truncation)


def why_no_pair(item: Any) -> str | None:
    """Return the reason why `item` is no pair of two things; None if it is one."""
    if isinstance(item, Pair) or (isinstance(item, tuple | list) and len(item) == 2):
        return None
    return f"expected a pair of texts, got {item!r:.60}"


class PairTokenizer(TextTokenizer):
    """A tokenizer of pairs: the special tokens between and around them are those of its file.

    The texts are tokenised one by one, a query with many documents once. `limit` is that of both
    texts and their special tokens; with `left`, pairs lose the beginnings of their texts, and
    without `types`, all tokens are of type 0.

    Raises:
        ConfigError: the file has no form for pairs, or another one than a first text with type 0
            and a second text with type 0 or 1; or the limit leaves no room for two texts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        pad_id: int,
        copy: bool = True,
        left: bool = False,
        types: bool = True,
    ) -> None:
        super().__init__(tokenizer, max_length=max_length, pad_id=pad_id, copy=copy, left=left)
        self._typed = types
        self._before, self._middle, self._after, self._types = self._read_frame()

    @property
    def _cuts_left(self) -> bool:
        """Return False: the texts of a pair are cut here, each on the side of its pair."""
        return False

    def check_last(self, padding: object, folder: Path) -> None:
        """Raise BundleError if pairs end in the token that config.json has for padding.

        Models that score the last token look for the last one that is not of padding.
        """
        if padding in [max(last, ~last) for last in self._after[-1:].tolist()]:  # of any type
            raise BundleError(
                f"{folder} scores the last token that is no padding, and its tokenizer puts the "
                "token of padding behind every pair: give it another one for padding"
            )

    def limit(self, max_length: int) -> None:
        """Set the most tokens of a pair, special tokens included; not while pairs are tokenised."""
        special = self._special_of_pairs()
        if max_length - special < 2:
            raise ConfigError(
                Setting("max_length"),
                f" {max_length} leaves no room for two texts: the tokenizer adds {special} special "
                f"tokens to a pair, so give at least {special + 2}",
            )
        super().limit(max_length)
        self._room = max_length - special
        self.why_empty = (
            f"the query leaves no room for a document: both may have {self._room} tokens "
            "(truncation='longest_first' cuts the query, too)"
        )

    def _special_of_pairs(self) -> int:
        return self._tokenizer.num_special_tokens_to_add(is_pair=True)

    def find_invalid(self, inputs: Sequence[Any]) -> dict[int, str]:
        """Return index -> reason for each input that is no pair of texts."""
        return {i: reason for i, item in enumerate(inputs) if (reason := why_invalid_pair(item))}

    def short_ids(self, text: object, prompt: str) -> list[int] | None:
        """Return None: a text by itself is no pair."""
        return None

    def __call__(self, texts: Sequence[Any], *, prompt: str = "") -> TokenizedTexts:
        """Tokenise valid pairs, with `prompt` before each query and, like it, cut from the left.

        A row without tokens is one whose query leaves no room. As of a text, 64 characters per
        token of the limit are tokenised of each.
        """
        pairs = [
            pair._replace(query=prompt + pair.query, left=pair.left or self.left) for pair in texts
        ]
        own = self._own([pair for pair in pairs if pair.document is not None])
        alone = self._alone([pair for pair in pairs if pair.document is None])
        parts: list[Ids] = [np.empty(0, np.int32)]
        offsets, truncated = np.zeros(len(texts) + 1, np.int64), []
        for row, pair in enumerate(pairs):
            if pair.document is None:
                ids, cut = alone[pair]
                parts.append(ids)
                offsets[row + 1] = len(ids)
                truncated.append(cut)
                continue
            (query, m, query_cut), (document, n, document_cut) = (
                own[text, pair.left] for text in (pair.query, pair.document)
            )
            counts = _kept(m, n, self._room, pair.truncation)
            long = m + n > self._room
            truncated.append(long or query_cut or document_cut)
            if sum(counts) > self._room or (n > 0 and counts[1] == 0):
                continue
            first, second = (
                (ids[len(ids) - count :] if pair.left else ids[:count]) ^ -kind
                for ids, count, kind in zip((query, document), counts, self._types, strict=True)
            )
            parts += (self._before, first, self._middle, second, self._after)
            offsets[row + 1] = sum(map(len, parts[-5:]))
        np.cumsum(offsets, out=offsets)
        return TokenizedTexts(RaggedTokens(np.concatenate(parts), offsets), truncated)

    def _own(self, pairs: list[Pair]) -> dict[tuple[str, bool], tuple[Ids, int, bool]]:
        """Tokenise the texts of pairs, each once.

        Returns:
            Of each text and side: the tokens at the end that may stay, the number of all tokens,
            and whether the text is longer than its tokenised part.
        """
        found = {}
        for left in {pair.left for pair in pairs}:
            sides = [(pair.query, pair.document or "") for pair in pairs if pair.left is left]
            texts = list(dict.fromkeys(itertools.chain.from_iterable(sides)))
            encodings, clipped = self._clipped(texts, special=False, left=left)
            for text, encoding, cut in zip(texts, encodings, clipped, strict=True):
                whole = [encoding, *encoding.overflowing]
                ids = encoding.ids
                if left:
                    ids = [i for part in whole for i in part.ids][-self.max_length :]
                found[text, left] = (np.array(ids, np.int32), sum(map(len, whole)), cut)
        return found

    def _alone(self, pairs: list[Pair]) -> dict[Pair, tuple[Ids, bool]]:
        """Tokenise pairs without a document: their ids, and whether they were cut."""
        if not pairs:
            return {}
        tokens, truncated = super().__call__([pair.query for pair in pairs])
        return {
            pair: (last_chunk(self, pair.query, "") if cut and pair.left else tokens.ids[a:b], cut)
            for pair, (a, b), cut in zip(pairs, tokens.spans(), truncated, strict=True)
        }

    def _read_frame(self) -> tuple[Ids, Ids, Ids, tuple[int, int]]:
        """Return the special tokens before, between and after the texts, and the texts' types."""
        for probe in _PROBES:
            with library_errors("the tokenizer failed"):
                found = self._tokenizer.encode_batch([(probe, probe)])[0]
            form = "".join("-" if one is None else str(one) for one in found.sequence_ids)
            if match := _FORM.fullmatch(form):
                break
        else:
            raise ConfigError("its post_processor does not put two texts one behind the other")
        types = found.type_ids if self._typed else [0] * len(found.ids)
        most = max(found.ids)
        spans = [slice(*match.span(group)) for group in range(1, 6)]
        of_query, of_document = (set(types[spans[part]]) for part in (1, 3))
        if types != sorted(types) or not {*types} <= {0, 1} or len(of_query | of_document) > 2:
            raise ConfigError("its post_processor gives a pair other token types than 0 and then 1")
        if len(of_query) > 1 or len(of_document) > 1 or most > MOST_ID:
            raise ConfigError("its post_processor gives a text several types, or an id too large")
        coded = np.array(found.ids, np.int32) ^ -np.array(types, np.int32)
        before, middle, after = (coded[spans[part]] for part in (0, 2, 4))
        return before, middle, after, (of_query.pop(), of_document.pop())


class QuestionTokenizer(PairTokenizer):
    """A tokenizer of pairs as Qwen3-Reranker's model card asks whether a document fits a query.

    A prompt takes the place of its usual instruction. Where a pair is too long, its document is
    cut, whatever the pair says: the template has it last.
    """

    def __call__(self, texts: Sequence[Any], *, prompt: str = "") -> TokenizedTexts:
        """Tokenise valid pairs; `prompt` is the instruction."""
        # A blank belongs to the word behind it, and an end of line may to the word before it.
        before = f"<Instruct>: {prompt or _INSTRUCTION}\n<Query>: "
        return super().__call__([
            Pair(f"{before}{pair.query}\n", f" {pair.document}", "only_second", pair.left)
            for pair in texts
        ])  # fmt: skip

    def find_invalid(self, inputs: Sequence[Any]) -> dict[int, str]:
        """Return index -> reason for each input that is no pair of two texts."""
        alone = {
            i: "the document is missing"
            for i, item in enumerate(inputs)
            if isinstance(item, Pair) and item.document is None
        }
        return alone | super().find_invalid(inputs)

    def _special_of_pairs(self) -> int:
        return sum(map(len, self._read_frame()[:3]))

    def _read_frame(self) -> tuple[Ids, Ids, Ids, tuple[int, int]]:
        if self._tokenizer.num_special_tokens_to_add(is_pair=False):
            raise ConfigError("its post_processor puts special tokens around texts")
        before, middle, after = (
            np.array(one.ids, np.int32)
            for one in self._encode([_BEFORE, "<Document>:", _AFTER], special=False)
        )
        return before, middle, after, (0, 0)


def why_invalid_pair(item: Any) -> str | None:
    """Return why an item is no pair of texts, or of a text and None; None if it is one."""
    if not isinstance(item, Pair):
        return why_no_pair(item) or f"the document: {why_invalid(item[1])}"
    for name, text in zip(("query", "document"), item, strict=False):
        if text is None and name == "document":
            continue
        if reason := why_invalid(text):
            return f"the {name}: {reason}"
    return None


def _kept(query: int, document: int, room: int, truncation: Truncation) -> tuple[int, int]:
    """Return how many tokens of both texts are kept, as the library `tokenizers` decides it."""
    if query + document <= room:
        return query, document
    if truncation == "only_second":
        return query, max(0, room - query)
    short, long = sorted((query, document))
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = room - short
    return (long, short) if query > document else (short, long)
