"""Write answers in pieces: many vectors at once would hold up everybody else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from mirror_rt.pipeline.pipeline import Vectors
from mirror_rt.pipeline.results import EncodedTexts
from mirror_rt.server.exchange import Answer, Exchange
from mirror_rt.vectors.quantization import Embeddings

# Number of vectors that are written at a time; other tasks have their turn in between.
ROWS = 64
NUMPY = orjson.OPT_SERIALIZE_NUMPY
# Number of values that are written at a time.
_NUMBERS = 1 << 15
# Bytes that an answer computed piece by piece holds at a time: as much as 8 texts of 512 tokens
# with 384 dimensions.
_HELD = 6 << 20
# Bytes of a result without its text and its vector, in memory.
_RESULT = 256

Scores = npt.NDArray[np.float64]


def vectors_answer(content: Iterator[bytes], encoded: EncodedTexts) -> Answer:
    """Return an answer whose content was written of these vectors: at once if they are few."""
    headers = truncated_header(encoded)
    if len(encoded.embeddings) <= ROWS:
        return Answer(b"".join(content), headers=headers)
    held = encoded.embeddings.nbytes + _RESULT * len(encoded.embeddings)
    return Answer(content, headers=headers, held=held)


def truncated_header(encoded: EncodedTexts) -> list[tuple[bytes, bytes]]:
    """Return a header with the number of texts that were cut; none if no text was."""
    cut = sum(encoded.truncated.tolist())
    return [(b"x-truncated-items", str(cut).encode())] if cut else []


def results_answer(
    head: bytes, result: Callable[[int], Any], tail: dict[str, Any] | None, encoded: EncodedTexts,
    scores: Scores | None = None, most: int | None = None,
) -> Answer:  # fmt: skip
    """Write the result of each text: the best by their scores, or all of them in their order.

    `head` is the beginning up to the list of results, and `tail` has the fields that follow them in
    an object.
    """
    n = len(encoded.embeddings)
    order = list(range(n)) if scores is None else np.argsort(-scores, kind="stable").tolist()[:most]

    def pieces() -> Iterator[bytes]:
        yield head
        for start in range(0, len(order), ROWS):
            rows = [result(i) for i in order[start : start + ROWS]]
            yield (b"," if start else b"") + orjson.dumps(rows, option=NUMPY)[1:-1]
        yield b"]" if tail is None else b"]," + orjson.dumps(tail)[1:]

    return vectors_answer(pieces(), encoded)


async def begun(pieces: AsyncGenerator[bytes]) -> Answer:
    """Wait for the first piece: an error before it still gets an HTTP status of its own."""
    first = await anext(pieces)

    async def all_of_them() -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return Answer(all_of_them(), held=_HELD)


async def listed(values: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the pieces of a JSON list of these values."""
    opening = b"["
    async for value in values:
        yield opening + value
        opening = b","
    yield b"]"


async def arrays_of(
    vectors: AsyncIterator[list[Vectors]], exchange: Exchange
) -> AsyncGenerator[bytes]:
    """Yield the pieces of a JSON list of arrays [n, H]."""
    opening = b"["
    async for arrays in vectors:
        exchange.tokens = (exchange.tokens or 0) + sum(map(len, arrays))
        for array in arrays:
            for part in rows_of(array):
                yield opening + part
                opening = b""
            opening = b","
    yield b"]"


def rows_of(vectors: Embeddings) -> Iterator[bytes]:
    """Yield an array [n, D] as a JSON list of lists, in pieces of some thousand numbers."""
    step = max(1, _NUMBERS // vectors.shape[1])
    for start in range(0, len(vectors), step):
        part = orjson.dumps(list(vectors[start : start + step]), option=NUMPY)
        last = start + step >= len(vectors)
        yield (b"," if start else b"[") + part[1:-1] + (b"]" if last else b"")
