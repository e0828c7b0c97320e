"""Windows of texts to vectors: tokens, batches, the model, and all in order again."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.options import Job
from mirror_rt.errors import InvalidTextError, NonFiniteError
from mirror_rt.tokens.batching import CPU_RUN_COST, plan_batches
from mirror_rt.tokens.chunking import TokenRows, id_rows, pool_chunks, token_rows
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_rt.tokens.windows import Window, in_parallel, one_ahead
from mirror_rt.vectors.quantization import Embeddings

__all__ = ["EncodedTexts", "Pipeline", "Stopped", "Vectors", "join"]

logger = logging.getLogger("mirror_rt")

Vectors = npt.NDArray[np.float32]


class Stopped(Exception):  # noqa: N818  # no error: it was asked for
    """The caller has lost interest."""


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Embeddings of n texts, and what the model made of each.

    Attributes:
        embeddings: [n, D], in the precision asked for.
        token_counts: int64 [n], tokens that were run, special tokens and prompt included.
        chunks: int64 [n], rows that were run: more than 1 with `on_too_long="chunk"` alone, 0 for
            a text that could not be encoded.
        truncated: bool [n], True where text was cut to fit.
    """

    embeddings: Embeddings
    token_counts: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.bool_]


class Pipeline(ABC):
    """The way of a window of texts through a model.

    Args:
        tokenizer: with the length limit of the model.
        dimension: length D of an embedding.
        pad_to: pad every text to this many tokens; None for as few as a batch allows.
        run_cost: what a run costs besides its tokens, in tokens.
        parallel_runs: how many runs are best in flight at a time: one a device.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        dimension: int,
        pad_to: int | None,
        run_cost: int = CPU_RUN_COST,
        parallel_runs: int = 1,
    ) -> None:
        self._tokenizer = tokenizer
        self._dimension = dimension
        self._pad_to = pad_to
        self._run_cost = run_cost
        self._parallel_runs = parallel_runs
        self._said: set[str] = set()
        self._saying = threading.Lock()

    @abstractmethod
    def _run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run the model: a padded batch to float32 [rows, D]."""

    @property
    def pad_to(self) -> int | None:
        """Tokens that every row is padded to; None for as few as a batch allows."""
        return self._pad_to

    @property
    def run_cost(self) -> int:
        """What a run costs besides its tokens, in tokens."""
        return self._run_cost

    @property
    def parallel_runs(self) -> int:
        """How many runs are best in flight at a time: one a device."""
        return self._parallel_runs

    def prepare_concurrent_runs(self) -> int:
        """Get ready for runs that begin while another is in flight; how many are best at a time."""
        return self._parallel_runs

    def prepare(self, texts: list[Any], job: Job) -> TokenRows:
        """Check and tokenise the texts of one call, or take lists of token ids as they are.

        Raises:
            InvalidTextError: a text cannot be encoded, where that is to be an error.
            ConfigError: the prompt leaves no room for text.
        """
        if texts and isinstance(texts[0], list):
            rows = id_rows(self._tokenizer, texts)
        else:
            rows = token_rows(self._tokenizer, Window(0, texts), job)
        self._report(rows, job)
        return rows

    def run_tokens(self, tokens: RaggedTokens, *, normalize: bool) -> Vectors:
        """Run rows as one batch: float32 [rows, D], NaN in a row that has no finite vector."""
        rows = np.arange(len(tokens))
        padded = tokens.pad(rows, pad_id=self._tokenizer.pad_id, length=self._pad_to)
        return self._run_batch(padded, normalize=normalize)

    def _encode_windows(
        self,
        stream: Iterable[Window],
        job: Job,
        count: Callable[[int], object] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> Iterator[EncodedTexts]:
        """Encode window after window.

        Args:
            stream: of consecutive windows.
            job: checked options.
            count: told how many texts more are finished.
            stop: set to end with `Stopped` before the next batch.
        """
        with closing(one_ahead(partial(token_rows, self._tokenizer, job=job), stream)) as tokenized:
            for rows in tokenized:
                self._report(rows, job)
                vectors = np.empty((len(rows.text), job.dimension), dtype=np.float32)
                is_last = np.diff(rows.text, append=-1) != 0 if rows.chunked else None
                with closing(self._run(rows, job)) as results:
                    for batch, result in results:
                        if job.errors == "raise":
                            _raise_non_finite(batch, result, rows)
                        vectors[batch] = result[:, : job.dimension]
                        count(len(batch) if is_last is None else int(is_last[batch].sum()))
                        if stop is not None and stop.is_set():
                            raise Stopped
                count(len(rows.invalid))
                yield self.finish(vectors, rows, job)

    def _run(
        self, rows: TokenRows, job: Job
    ) -> Generator[tuple[npt.NDArray[np.int64], Vectors], None, None]:
        """Yield (rows int64 [b], vectors float32 [b, D]) by batch."""
        lengths = rows.tokens.lengths
        if self._pad_to is not None:
            lengths = np.full_like(lengths, self._pad_to)

        def run(batch: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Vectors]:
            padded = rows.tokens.pad(batch, pad_id=self._tokenizer.pad_id, length=self._pad_to)
            return batch, self._run_batch(padded, normalize=job.normalize)

        batches = plan_batches(lengths, token_budget=job.token_budget, run_cost=self._run_cost)
        yield from in_parallel(run, batches, self._parallel_runs)

    def finish(self, vectors: Vectors, rows: TokenRows, job: Job) -> EncodedTexts:
        """Vectors of texts from float32 [rows, job.dimension], in unit length where asked for."""
        pooled = pool_chunks(vectors, rows, normalize=job.normalize)
        if job.normalize and job.dimension < self._dimension:
            pooled /= np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        if len(rows.text) == len(rows.truncated) and not rows.chunked:  # a row a text
            counts, chunks = rows.tokens.lengths, np.ones(len(rows.text), dtype=np.int64)
        else:
            chunks = np.bincount(rows.text, minlength=len(rows.truncated))
            counts = np.zeros_like(chunks)
            np.add.at(counts, rows.text, rows.tokens.lengths)
        return EncodedTexts(job.quantizer(pooled), counts, chunks, rows.truncated)

    def _report(self, rows: TokenRows, job: Job) -> None:
        """Raise for texts that cannot be encoded, and say what became of long ones."""
        if rows.invalid and job.errors == "raise":
            raise InvalidTextError(rows.invalid)
        n = len(rows.truncated)
        too_long = f"%d of %d texts are longer than {self._tokenizer.max_length} tokens and were"
        if cut := int(np.count_nonzero(rows.truncated)):
            self._say_once(logging.WARNING, f"{too_long} cut there (said once)", cut, n)
        if job.on_too_long == "chunk" and (extra := len(rows.text) - (n - len(rows.invalid))):
            split = int(np.count_nonzero(np.bincount(rows.text) > 1))
            self._say_once(
                logging.INFO,
                f"{too_long} encoded in %d chunks (said once)",
                split,
                n,
                extra + split,
            )

    def _say_once(self, level: int, message: str, *values: int) -> None:
        with self._saying:
            if message in self._said:
                return
            self._said.add(message)
        logger.log(level, message, *values)


def _raise_non_finite(batch: npt.NDArray[np.int64], result: Vectors, rows: TokenRows) -> None:
    finite = np.isfinite(result).all(axis=1)
    if not finite.all():
        raise NonFiniteError(np.unique(rows.text[batch[~finite]]) + rows.start)


def join(parts: Iterable[EncodedTexts], n: int, job: Job) -> EncodedTexts:
    """Put windows of n texts together, each let go of as it comes."""
    joined = EncodedTexts(
        np.empty((n, job.quantizer.width(job.dimension)), dtype=job.quantizer.dtype),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.bool_),
    )
    start = 0
    for part in parts:
        end = start + len(part.truncated)
        joined.embeddings[start:end] = part.embeddings
        joined.token_counts[start:end] = part.token_counts
        joined.chunks[start:end] = part.chunks
        joined.truncated[start:end] = part.truncated
        start = end
    return joined
