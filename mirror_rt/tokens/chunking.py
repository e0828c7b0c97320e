"""From texts to rows of tokens, and back from rows to one vector a text.

A text is one row, or in chunks several: rows of at most the length limit, whose vectors are
averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.options import Job
from mirror_rt.errors import ConfigError
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import TextTokenizer, why_invalid
from mirror_rt.tokens.windows import Window

__all__ = ["TokenRows", "id_rows", "pool_chunks", "token_rows", "too_long_reason"]

Ids = npt.NDArray[np.int32]
Vectors = npt.NDArray[np.float32]

# Bounds time and memory of one text in chunks: about 5,000 rows of 512 tokens.
_MOST_CHARACTERS = 10_000_000


@dataclass(frozen=True, slots=True)
class TokenRows:
    """What the model runs for a window of n texts.

    Attributes:
        start: number of the first text in the input.
        tokens: m rows, in the order of the texts.
        text: int64 [m], the text (in the window) of each row.
        weights: float32 [m], tokens of the row that are the text's own; 1 for an only row.
        truncated: bool [n], texts that were cut.
        invalid: (number in the input, reason) of the texts that have no row.
    """

    start: int
    tokens: RaggedTokens
    text: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    truncated: npt.NDArray[np.bool_]
    invalid: list[tuple[int, str]]

    @property
    def chunked(self) -> bool:
        """Whether a text has several rows."""
        return len(self.text) + len(self.invalid) > len(self.truncated)


def token_rows(tokenizer: TextTokenizer, window: Window, job: Job) -> TokenRows:
    """Check and tokenise the texts of a window.

    Raises:
        ConfigError: the prompt leaves no room for text.
    """
    invalid = {i: why for i, text in enumerate(window.texts) if (why := why_invalid(text))}
    text = np.array([i for i in range(len(window.texts)) if i not in invalid], dtype=np.int64)
    tokenized = tokenizer([window.texts[i] for i in text], prompt=job.prompt)
    tokens, too_long = tokenized.tokens, text[tokenized.truncated]
    weights = np.ones(len(text), dtype=np.float32)
    truncated = np.zeros(len(window.texts), dtype=np.bool_)
    if len(too_long):
        check_prompt(tokenizer, job.prompt)
        if job.on_too_long == "truncate":
            truncated[too_long] = True
        elif job.on_too_long == "error":
            invalid |= dict.fromkeys(map(int, too_long), too_long_reason(tokenizer.max_length))
        else:
            huge = {int(i) for i in too_long if len(window.texts[i]) > _MOST_CHARACTERS}
            invalid |= {i: _too_huge(window.texts[i]) for i in huge}
            chunks = {
                int(i): chunk_text(tokenizer, window.texts[i], job.prompt)
                for i in too_long
                if int(i) not in huge
            }
            tokens, text, weights = _insert_chunks(tokens, text, chunks)
    if not (lengths := tokens.lengths).all():
        invalid |= dict.fromkeys(map(int, text[lengths == 0]), "it has no tokens")
    if invalid:
        keep = np.array([int(i) not in invalid for i in text], dtype=np.bool_)
        tokens, text, weights = tokens.take(np.flatnonzero(keep)), text[keep], weights[keep]
    return TokenRows(
        window.start,
        tokens,
        text,
        weights,
        truncated,
        [(window.start + i, invalid[i]) for i in sorted(invalid)],
    )


def id_rows(tokenizer: TextTokenizer, sequences: list[Any]) -> TokenRows:
    """Check token ids, as `BatchEncoder.tokenize` gives them: they are run as they are."""
    invalid = [(i, why) for i, ids in enumerate(sequences) if (why := _unusable(tokenizer, ids))]
    refused = {i for i, _ in invalid}
    kept = [i for i in range(len(sequences)) if i not in refused]
    return TokenRows(
        0,
        RaggedTokens.from_lists([sequences[i] for i in kept]),
        np.array(kept, dtype=np.int64),
        np.ones(len(kept), dtype=np.float32),
        np.zeros(len(sequences), dtype=np.bool_),
        invalid,
    )


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
    """Tokens of the prompt; ConfigError where it leaves no room for text."""
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


def chunk_text(tokenizer: TextTokenizer, text: str, prompt: str) -> list[tuple[Ids, int]]:
    """Rows of a text of any length: (token ids, how many of them are the text's own).

    Every row is as long as the limit allows, the last one as long as it must be; each has the
    special tokens and the prompt.
    """
    parts = list(_parts(text, tokenizer.clip_characters))
    before, content, after = tokenizer.framed([prompt + parts[0], *parts[1:]])
    shared = 0
    if prompt:
        # Its tokens, but for those that it shares with the text.
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
    """One vector a text from one a row: the mean weighted by length; NaN for a text of no row.

    Args:
        vectors: float32 [m, D].
        rows: what they were computed from.
        normalize: give the means unit length again.

    Returns:
        float32 [n, D].
    """
    if not rows.chunked and not rows.invalid:
        return vectors
    pooled = np.full((len(rows.truncated), vectors.shape[1]), np.nan, dtype=np.float32)
    pooled[rows.text] = vectors
    if not rows.chunked:
        return pooled
    first = np.flatnonzero(np.diff(rows.text, prepend=-1))
    ends = np.append(first[1:], len(vectors))
    for begin, end in zip(first, ends, strict=True):
        if end - begin > 1:
            mean = np.average(vectors[begin:end], axis=0, weights=rows.weights[begin:end])
            pooled[rows.text[begin]] = mean
            if normalize:
                pooled[rows.text[begin]] /= max(float(np.linalg.norm(mean)), 1e-12)
    return pooled


def _insert_chunks(
    tokens: RaggedTokens, text: npt.NDArray[np.int64], chunks: dict[int, list[tuple[Ids, int]]]
) -> tuple[RaggedTokens, npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Replace the rows of the texts in `chunks` by theirs."""
    rows: list[tuple[int, Ids, int]] = []
    for i, (begin, end) in zip(text.tolist(), tokens.spans(), strict=True):
        own = chunks.get(i, [(tokens.ids[begin:end], 1)])
        rows += [(i, ids, weight) for ids, weight in own]
    return (
        RaggedTokens.from_arrays([ids for _, ids, _ in rows]),
        np.array([i for i, _, _ in rows], dtype=np.int64),
        np.array([weight for _, _, weight in rows], dtype=np.float32),
    )


def _parts(text: str, size: int) -> Iterator[str]:
    """Cut at white space where there is some, so that hardly a word is cut."""
    begin = 0
    while len(text) - begin > size:
        end = begin + size
        space = max(text.rfind(mark, begin + size // 2, end) for mark in (" ", "\n"))
        end = space if space > 0 else end
        yield text[begin:end]
        begin = end
    yield text[begin:]


def too_long_reason(limit: int) -> str:
    """Why a text of more than `limit` tokens is refused."""
    return f"it is longer than {limit} tokens (on_too_long='truncate' cuts it, 'chunk' splits it)"


def _too_huge(text: str) -> str:
    return (
        f"it has {len(text):,} characters, more than the {_MOST_CHARACTERS:,} that "
        "on_too_long='chunk' takes"
    )
