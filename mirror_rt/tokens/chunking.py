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
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_rt.tokens.windows import TextWindow
from mirror_rt.vectors.normalization import normalize_rows

Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
OnTooLong = Literal["truncate", "error", "chunk"]

# This bounds the time and memory for one text in chunks, at about 5,000 rows of 512 tokens.
MOST_CHARACTERS = 10_000_000


class TokenRows(NamedTuple):
    """The rows that the model runs for a window of n texts.

    Attributes:
        start: index of the first text in the input.
        n: number of texts.
        tokens: m rows, in the order of the texts.
        cut: indices (in the window) of the texts that were cut.
        invalid: (index in the input, reason) of each text that has no row.
        text: int64 [m], index (in the window) of the text of each row; None if row i is text i.
        weights: float32 [m], number of the row's tokens that belong to the text itself; 1 for the
            only row of a text. None if no text was split into chunks.
    """

    start: int
    n: int
    tokens: RaggedTokens
    cut: Sequence[int] = ()
    invalid: Sequence[tuple[int, str]] = ()
    text: Indices | None = None
    weights: npt.NDArray[np.float32] | None = None

    def text_of_rows(self) -> Indices:
        """Return the index (in the window) of the text of each row: int64 [m]."""
        return np.arange(self.n) if self.text is None else self.text

    @property
    def chunked(self) -> bool:
        """Whether a text has several rows."""
        return self.text is not None and len(self.text) + len(self.invalid) > self.n

    @property
    def chunks(self) -> Indices:
        """The number of rows of each text: int64 [n]."""
        if self.text is None:
            return np.ones(self.n, dtype=np.int64)
        return np.bincount(self.text, minlength=self.n)

    @property
    def token_counts(self) -> Indices:
        """The number of tokens of each text, over all its rows: int64 [n]."""
        if self.text is None:
            return self.tokens.lengths
        counts = np.zeros(self.n, dtype=np.int64)
        np.add.at(counts, self.text, self.tokens.lengths)
        return counts

    @property
    def truncated(self) -> npt.NDArray[np.bool_]:
        """Whether each text was cut: bool [n]."""
        truncated = np.zeros(self.n, dtype=np.bool_)
        truncated[list(self.cut)] = True
        return truncated


def token_rows(
    tokenizer: TextTokenizer,
    window: TextWindow,
    *,
    prompt: str,
    on_too_long: OnTooLong,
    stop: threading.Event | None = None,
) -> TokenRows:
    """Tokenise the checked texts of a window, with `prompt` before each.

    Raises:
        ConfigError: the prompt leaves no room for text.
        Stopped: `stop` was set while a text was split into chunks.
    """
    start, texts, invalid = window
    valid = [i for i in range(len(texts)) if i not in invalid] if invalid else range(len(texts))
    tokens, truncated, any_empty = tokenizer(
        [texts[i] for i in valid] if invalid else texts, prompt=prompt
    )
    rows = TokenRows(start, len(texts), tokens)
    if not invalid and not any_empty and True not in truncated:
        return rows
    rows, refused = rows._replace(text=np.array(valid, dtype=np.int64)), dict(invalid)
    if too_long := [i for i, cut in zip(valid, truncated, strict=True) if cut]:
        check_prompt(tokenizer, prompt)
        if on_too_long == "truncate":
            rows = rows._replace(cut=too_long)
        elif on_too_long == "error":
            refused |= dict.fromkeys(too_long, too_long_reason(tokenizer.max_length))
        else:
            huge = [i for i in too_long if len(texts[i]) > MOST_CHARACTERS]
            refused |= {
                i: f"it has {len(texts[i]):,} characters, more than the {MOST_CHARACTERS:,} that "
                "on_too_long='chunk' takes"
                for i in huge
            }
            kept = [i for i in too_long if i not in huge]
            chunks = {i: chunk_text(tokenizer, texts[i], prompt, stop) for i in kept}
            rows = _insert_chunks(rows, chunks)
    if any_empty:
        empty = rows.text_of_rows()[rows.tokens.lengths == 0]
        refused |= dict.fromkeys(empty.tolist(), "it has no tokens")
    return _without(rows, refused) if refused else rows


def _without(rows: TokenRows, refused: dict[int, str]) -> TokenRows:
    """Remove the rows of texts that cannot be encoded, and list these texts as invalid."""
    text = rows.text_of_rows()
    kept = np.flatnonzero([i not in refused for i in text.tolist()])
    return rows._replace(
        tokens=rows.tokens if len(kept) == len(rows.tokens) else rows.tokens.take(kept),
        text=text[kept],
        weights=None if rows.weights is None else rows.weights[kept],
        invalid=[(rows.start + i, refused[i]) for i in sorted(refused)],
    )


def id_rows(tokenizer: TextTokenizer, sequences: list[Any]) -> TokenRows:
    """Check lists of token ids, such as `BatchEncoder.tokenize` returns, and run them unchanged."""
    invalid = {i: why for i, ids in enumerate(sequences) if (why := _unusable(tokenizer, ids))}
    kept = [i for i in range(len(sequences)) if i not in invalid]
    tokens = RaggedTokens.from_lists([sequences[i] for i in kept])
    rows = TokenRows(0, len(sequences), tokens)
    if not invalid:
        return rows
    return rows._replace(text=np.array(kept, dtype=np.int64), invalid=list(invalid.items()))


def _unusable(tokenizer: TextTokenizer, ids: Any) -> str | None:
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        return f"expected a list of token ids, got {type(ids).__name__}"
    if not ids:
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
    parts = list(_parts(text, tokenizer.clip_characters))
    before, content, after = tokenizer.framed([prompt + parts[0], *parts[1:]], stop)
    shared = 0
    if prompt:
        # The prompt's own tokens are those before the first one that the text changes.
        alone = tokenizer.framed([prompt]).content[: len(content)]
        differs = np.flatnonzero(alone != content[: len(alone)])
        shared = int(differs[0]) if len(differs) else len(alone)
    before = np.concatenate([before, content[:shared]])
    own = content[shared:]
    room = tokenizer.max_length - len(before) - len(after)
    return [
        (np.concatenate([before, own[i : i + room], after]), len(own[i : i + room]))
        for i in range(0, max(1, len(own)), room)
    ]


def pool_chunks(vectors: Vectors, rows: TokenRows, *, normalize: bool) -> Vectors:
    """Average the vectors of each text's rows, weighted by length; NaN for a text without rows.

    Args:
        vectors: float32 [m, D], one vector for each row; the result is float32 [n, D].
        rows: the rows that the vectors were computed from.
        normalize: whether to give the means unit length again.
    """
    if rows.text is None or not (rows.chunked or rows.invalid):
        return vectors
    pooled = np.full((rows.n, vectors.shape[1]), np.nan, dtype=np.float32)
    pooled[rows.text] = vectors
    if not rows.chunked:
        return pooled
    assert rows.weights is not None
    first = np.flatnonzero(np.diff(rows.text, prepend=-1))
    ends = np.append(first[1:], len(vectors))
    for begin, end in zip(first, ends, strict=True):
        if end - begin > 1:
            mean = np.average(vectors[begin:end], axis=0, weights=rows.weights[begin:end])
            pooled[rows.text[begin]] = normalize_rows(mean[None])[0] if normalize else mean
    return pooled


def _insert_chunks(rows: TokenRows, chunks: dict[int, list[tuple[Ids, int]]]) -> TokenRows:
    """Replace the row of each text in `chunks` by its chunks."""
    made: list[tuple[int, Ids, int]] = []
    for i, (begin, end) in zip(rows.text_of_rows().tolist(), rows.tokens.spans(), strict=True):
        own = chunks.get(i, [(rows.tokens.ids[begin:end], 1)])
        made += [(i, ids, weight) for ids, weight in own]
    return rows._replace(
        tokens=RaggedTokens.from_arrays([ids for _, ids, _ in made]),
        text=np.array([i for i, _, _ in made], dtype=np.int64),
        weights=np.array([weight for _, _, weight in made], dtype=np.float32),
    )


def _parts(text: str, size: int) -> Iterator[str]:
    """Cut a text into parts of at most `size` characters, at white space if there is some."""
    begin = 0
    while len(text) - begin > size:
        end = begin + size
        space = max(text.rfind(mark, begin + size // 2, end) for mark in (" ", "\n"))
        end = space if space > 0 else end
        yield text[begin:end]
        begin = end
    yield text[begin:]


def too_long_reason(limit: int) -> str:
    """Return the reason why a text of more than `limit` tokens is refused."""
    return f"it is longer than {limit} tokens (on_too_long='truncate' cuts it, 'chunk' splits it)"
