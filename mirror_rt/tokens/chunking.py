"""Turn texts into rows of tokens, and the vectors of rows back into one vector per text.

A text is one row, or several rows (chunks) of at most the length limit, whose vectors are
averaged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import Framed, TextTokenizer
from mirror_rt.tokens.windows import TextWindow
from mirror_rt.vectors.normalization import normalize_rows

Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
OnTooLong = Literal["truncate", "truncate-left", "error", "chunk"]

# This bounds the time and memory for one text in chunks, at about 5,000 rows of 512 tokens.
MOST_CHARACTERS = 10_000_000


class TokenRows(NamedTuple):
    """The rows that the model runs for a window of n texts."""

    start: int  # index of the first text in the input
    tokens: RaggedTokens  # m rows, in the order of the texts
    truncated: npt.NDArray[np.bool_]  # bool [n], whether each text was cut to fit
    # (index in the input, reason) of each text that has no row.
    invalid: Sequence[tuple[int, str]] = ()
    # int64 [m], index (in the window) of the text of each row; None if row i is text i.
    text: Indices | None = None
    # float32 [m], number of the row's tokens that belong to the text itself; 1 for the only row of
    # a text. None if no text has several rows.
    weights: npt.NDArray[np.float32] | None = None

    def text_of_rows(self) -> Indices:
        """Return the index (in the window) of the text of each row: int64 [m]."""
        return np.arange(len(self.truncated)) if self.text is None else self.text

    def numbered(self, rows: Indices | list[int]) -> Indices:
        """Return the index in the input of each text that has one of `rows`, ascending."""
        return np.unique(self.text_of_rows()[rows]) + self.start

    @property
    def chunks(self) -> Indices:
        """The number of rows of each text: int64 [n]."""
        n = len(self.truncated)
        return np.ones(n, np.int64) if self.text is None else np.bincount(self.text, minlength=n)

    @property
    def token_counts(self) -> Indices:
        """The number of tokens of each text, over all its rows: int64 [n]."""
        if self.text is None:
            return self.tokens.lengths
        counts = np.zeros(len(self.truncated), dtype=np.int64)
        np.add.at(counts, self.text, self.tokens.lengths)
        return counts


def token_rows(
    tokenizer: TextTokenizer,
    window: TextWindow,
    prompt: str,
    on_too_long: OnTooLong,
    stop: threading.Event | None = None,
) -> TokenRows:
    """Tokenise the checked texts of a window, with `prompt` before each.

    ConfigError says that the prompt leaves no room for text, and Stopped that `stop` was set while
    a text was split into chunks.
    """
    start, texts, invalid, _ = window
    valid = [i for i in range(len(texts)) if i not in invalid] if invalid else range(len(texts))
    tokens, truncated = tokenizer([texts[i] for i in valid] if invalid else texts, prompt=prompt)
    any_empty = np.count_nonzero(tokens.lengths) < len(valid)
    if too_long := True in truncated:
        check_prompt(tokenizer, prompt)
    # In most windows every text becomes one row, and the rows are used as the tokenizer gives them.
    if not invalid and (on_too_long == "truncate" or not too_long) and not any_empty:
        return TokenRows(start, tokens, np.array(truncated, dtype=np.bool_))
    # Otherwise the rows are listed anew, since a text may have none of them, or several.
    refused, rows = dict(invalid), list[tuple[int, Ids, int]]()
    cut = np.zeros(len(texts), dtype=np.bool_)
    for i, (begin, end), long in zip(valid, tokens.spans(), truncated, strict=True):
        if long and on_too_long == "chunk" and len(texts[i]) <= MOST_CHARACTERS:
            rows += [(i, *chunk) for chunk in chunk_text(tokenizer, texts[i], prompt, stop)]
        elif long and on_too_long == "chunk":
            refused[i] = (
                f"it has {len(texts[i]):,} characters, more than the {MOST_CHARACTERS:,} that "
                "on_too_long='chunk' takes"
            )
        elif long and on_too_long == "error":
            refused[i] = too_long_reason(tokenizer.max_length)
        elif long and on_too_long == "truncate-left":
            if len(ids := last_chunk(tokenizer, texts[i], prompt)):
                rows.append((i, ids, 1))
                cut[i] = True
            else:
                refused[i] = tokenizer.why_empty
        elif begin == end:
            refused[i] = tokenizer.why_empty
        else:
            rows.append((i, tokens.ids[begin:end], 1))
            cut[i] = long
    text, tokens_of, weights = zip(*rows, strict=True) if rows else ((), (), ())
    return TokenRows(
        start,
        RaggedTokens.from_arrays(tokens_of),
        cut,
        [(start + i, refused[i]) for i in sorted(refused)],
        np.array(text, dtype=np.int64),
        np.array(weights, dtype=np.float32) if len(set(text)) < len(text) else None,
    )


def id_rows(tokenizer: TextTokenizer, sequences: list[Any]) -> TokenRows:
    """Check lists of token ids, such as `BatchEncoder.tokenize` returns, and run them unchanged."""
    invalid = {i: why for i, ids in enumerate(sequences) if (why := _unusable(tokenizer, ids))}
    kept = [i for i in range(len(sequences)) if i not in invalid]
    tokens = RaggedTokens.from_lists([sequences[i] for i in kept]).without(tokenizer.left_out)
    text = np.array(kept, dtype=np.int64) if invalid else None
    return TokenRows(0, tokens, np.zeros(len(sequences), np.bool_), list(invalid.items()), text)


def _unusable(tokenizer: TextTokenizer, ids: Any) -> str | None:
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        return f"expected a list of token ids, got {type(ids).__name__}"
    if not ids or set(ids) == {tokenizer.left_out}:
        return "it has no tokens"
    if len(ids) > tokenizer.max_length:
        return f"it has {len(ids)} token ids, and the model takes {tokenizer.max_length}"
    if not (min(ids) >= 0 and max(ids) < tokenizer.vocabulary_size):
        return f"its token ids are not all in 0 .. {tokenizer.vocabulary_size - 1}"
    return None


def check_prompt(tokenizer: TextTokenizer, prompt: str) -> int:
    """Return the number of tokens of a prompt; raise ConfigError if it leaves no room for text."""
    if not prompt:
        return 0
    framed = tokenizer.framed([prompt])
    used = sum(map(len, framed))
    if used >= tokenizer.max_length:
        raise ConfigError(
            f"the prompt has {used} tokens and leaves no room for text: the limit is "
            f"{tokenizer.max_length}"
        )
    return len(framed.content)


def chunk_text(
    tokenizer: TextTokenizer, text: str, prompt: str, stop: threading.Event | None = None
) -> list[tuple[Ids, int]]:
    """Split a text of any length into rows: (token ids, number of them that are the text's own).

    Every row has the special tokens and the prompt, and is as long as the limit allows, except
    for the last one.
    """
    # The tokenizer holds a large object for each token of a part, so it gets a part at a time.
    parts = list(_split_at_spaces(text, tokenizer.clip_characters))
    before, own, after = _framed(tokenizer, parts, prompt, stop)
    room = tokenizer.max_length - len(before) - len(after)
    return [
        (np.concatenate([before, own[i : i + room], after]), len(own[i : i + room]))
        for i in range(0, max(1, len(own)), room)
    ]


def last_chunk(tokenizer: TextTokenizer, text: str, prompt: str) -> Ids:
    """Return a row of the last tokens of a long text, with the special tokens and the prompt."""
    clip = tokenizer.clip_characters
    before, own, after = _framed(tokenizer, [text[-clip:]], prompt)
    room = tokenizer.max_length - len(before) - len(after)
    if len(own) < room and len(text) > clip:  # as of the beginning of a text, take more of it
        rest = tokenizer.without_blank_end(text, left=True)
        most = tokenizer.most_characters
        before, own, after = _framed(tokenizer, [rest[-most:]], prompt)
        room = tokenizer.max_length - len(before) - len(after)
    return np.concatenate([before, own[-room:], after])


def _framed(
    tokenizer: TextTokenizer, parts: list[str], prompt: str, stop: threading.Event | None = None
) -> Framed:
    """Tokenise the parts of a text; the prompt's tokens are among those before its own."""
    before, content, after = tokenizer.framed([prompt + parts[0], *parts[1:]], stop)
    shared = 0
    if prompt:
        # Every row begins with the prompt. A tokenizer may join its end with the beginning of the
        # text, so its own tokens are those before the first one that the text changes.
        alone = tokenizer.framed([prompt]).content[: len(content)]
        differs = np.flatnonzero(alone != content[: len(alone)])
        shared = int(differs[0]) if len(differs) else len(alone)
    return Framed(np.concatenate([before, content[:shared]]), content[shared:], after)


def pool_chunks(vectors: Vectors, rows: TokenRows, *, normalize: bool) -> Vectors:
    """Average the vectors of each text's rows, weighted by length; NaN for a text without rows.

    The vectors are float32 [m, D], one for each row, and the result is float32 [n, D], by
    `normalize` of unit length again.
    """
    if rows.text is None:
        return vectors
    pooled = np.full((len(rows.truncated), vectors.shape[1]), np.nan, dtype=np.float32)
    pooled[rows.text] = vectors
    if rows.weights is None:
        return pooled
    first = np.flatnonzero(np.diff(rows.text, prepend=-1))
    ends = np.append(first[1:], len(vectors))
    for begin, end in zip(first, ends, strict=True):
        if end - begin > 1:
            mean = np.average(vectors[begin:end], axis=0, weights=rows.weights[begin:end])
            pooled[rows.text[begin]] = normalize_rows(mean[None])[0] if normalize else mean
    return pooled


def _split_at_spaces(text: str, size: int) -> Iterator[str]:
    """Cut a text into parts of at most `size` characters, at white space if there is some."""
    begin = 0
    while len(text) - begin > size:
        end = begin + size
        # A cut within a word would give other tokens than the whole text. The search goes back
        # half a part at most, so that no part is tiny and the whole text is read twice at most.
        space = max(text.rfind(mark, begin + size // 2, end) for mark in (" ", "\n"))
        end = space if space > 0 else end
        yield text[begin:end]
        begin = end
    yield text[begin:]


def too_long_reason(limit: int) -> str:
    """Return the reason why a text of more than `limit` tokens is refused."""
    return f"it is longer than {limit} tokens (on_too_long='truncate' cuts it, 'chunk' splits it)"
