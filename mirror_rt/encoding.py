"""Texts to vectors: checking, windows, batches and order, whatever runs the model."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from mirror_rt.batching import plan_batches
from mirror_rt.errors import ConfigError, InvalidTextError, require
from mirror_rt.tokenization import TextTokenizer, why_invalid
from mirror_rt.tokens import PaddedBatch, RaggedTokens

__all__ = ["BatchEncoder", "EmbeddingModel", "Vectors"]

logger = logging.getLogger("mirror_rt")

Vectors = npt.NDArray[np.float32]

# `batch_size` counts texts of this many tokens, so the default 32 is a budget of 2,048 tokens.
_TOKENS_PER_TEXT = 64
# Texts sorted together: enough for little padding, few enough for a flat memory.
_WINDOW = 8192


class EmbeddingModel(Protocol):
    """What evaluation needs of an encoder."""

    def encode(self, inputs: list[str], *, normalize_embeddings: bool = True) -> Vectors:
        """Texts to float32 [n, D]."""
        ...

    @property
    def mask_token(self) -> str | None:
        """The tokenizer's mask token, None where it has none."""
        ...


class BatchEncoder(ABC):
    """Everything of an encoder but the model itself.

    Args:
        tokenizer: with the length limit of the model.
        dimension: length D of an embedding.
        pad_to: pad every text to this many tokens; None for as few as a batch allows.
        mask_token: the tokenizer's mask token, None where it has none.
        normalize: whether vectors are of unit length unless asked otherwise.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        dimension: int,
        pad_to: int | None,
        mask_token: str | None,
        normalize: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._dimension = dimension
        self._pad_to = pad_to
        self._mask_token = mask_token
        self._normalize = normalize
        self._told_of_truncation = False

    @abstractmethod
    def _run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run the model: a padded batch to float32 [rows, D]."""

    @property
    def dimension(self) -> int:
        """Length D of an embedding."""
        return self._dimension

    @property
    def max_length(self) -> int:
        """Most tokens of a text, special tokens included; longer texts are cut, with a warning."""
        return self._tokenizer.max_length

    @property
    def mask_token(self) -> str | None:
        """The tokenizer's mask token, None where it has none."""
        return self._mask_token

    def tokenize(self, inputs: str | Iterable[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included, cut at `max_length`.

        Raises:
            InvalidTextError: naming each text that cannot be encoded.
        """
        texts = [inputs] if isinstance(inputs, str) else _as_list(inputs)
        _raise_invalid(texts)
        tokens = self._tokenizer(texts).tokens
        return [tokens.ids[a:b].tolist() for a, b in pairwise(tokens.offsets.tolist())]

    def encode(
        self,
        inputs: str | Iterable[str],
        batch_size: int = 32,
        normalize_embeddings: bool | None = None,
        show_progress_bar: bool | None = None,
        truncate_dim: int | None = None,
        *,
        errors: Literal["raise", "nan"] = "raise",
    ) -> Vectors:
        """Encode texts.

        Args:
            inputs: one string, or any iterable of strings.
            batch_size: work of one session run, counted in texts of 64 tokens: the token
                budget is `64 * batch_size`. Short texts run more at a time, long ones fewer.
            normalize_embeddings: True for unit vectors (cosine is then a dot product), False for
                vectors as pooled, None for what the model declares: unit vectors, mostly.
            show_progress_bar: None shows one where the logger `mirror_rt` is at INFO.
            truncate_dim: keep the first so many dimensions (then normalise, if asked to).
            errors: `"raise"` refuses the call for an unusable text; `"nan"` gives that text
                a row of NaN and encodes the others.

        Returns:
            float32 [n, D] in the order of `inputs`; [D] for a single string.

        Raises:
            InvalidTextError: a text is not a string, is empty or blank, or is not valid Unicode.
            ConfigError: `batch_size` or `truncate_dim` is out of range.
        """
        texts = [inputs] if isinstance(inputs, str) else _as_list(inputs)
        self._check_options(batch_size, truncate_dim, errors)
        normalize = self._normalize if normalize_embeddings is None else normalize_embeddings
        if errors == "raise":
            _raise_invalid(texts)
        cut = truncate_dim or self.dimension
        vectors = np.full((len(texts), cut), np.nan, dtype=np.float32)
        with _progress_bar(len(texts), show_progress_bar) as bar:
            for start in range(0, len(texts), _WINDOW):
                window = range(start, min(start + _WINDOW, len(texts)))
                rows = [i for i in window if errors == "raise" or why_invalid(texts[i]) is None]
                good = [texts[i] for i in rows]
                tokens = self._tokenize(good)
                if errors == "raise" and not tokens.lengths.all():
                    empty = np.flatnonzero(tokens.lengths == 0)
                    raise InvalidTextError([(rows[i], "it has no tokens") for i in empty])
                for batch, result in self._run(tokens, batch_size, normalize):
                    vectors[np.take(rows, batch)] = result[:, :cut]
                    bar.update(len(batch))
        if normalize and cut < self.dimension:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors[0] if isinstance(inputs, str) else vectors

    def _check_options(self, batch_size: int, truncate_dim: int | None, errors: str) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
        if truncate_dim is not None and not 1 <= truncate_dim <= self.dimension:
            raise ConfigError(f"truncate_dim must be in 1 .. {self.dimension}, got {truncate_dim}")
        if errors not in ("raise", "nan"):
            raise ConfigError(f"errors must be 'raise' or 'nan', got {errors!r}")

    def _tokenize(self, texts: list[str]) -> RaggedTokens:
        tokenized = self._tokenizer(texts)
        if (cut := int(tokenized.truncated.sum())) and not self._told_of_truncation:
            self._told_of_truncation = True
            logger.warning(
                "%d of %d texts are longer than %d tokens and were cut there (said once)",
                cut,
                len(texts),
                self.max_length,
            )
        return tokenized.tokens

    def _run(
        self, tokens: RaggedTokens, batch_size: int, normalize: bool
    ) -> Iterator[tuple[npt.NDArray[np.int64], Vectors]]:
        """Yield (rows int64 [b], vectors float32 [b, D]) by batch, without rows of no token."""
        lengths = tokens.lengths if self._pad_to is None else np.full(len(tokens), self._pad_to)
        for rows in plan_batches(lengths, token_budget=_TOKENS_PER_TEXT * batch_size):
            filled = rows[tokens.lengths[rows] > 0]
            if len(filled) == 0:
                continue
            batch = tokens.pad(filled, pad_id=self._tokenizer.pad_id, length=self._pad_to)
            yield filled, self._run_batch(batch, normalize=normalize)


def _as_list(inputs: Any) -> list[Any]:
    """Materialise an iterable of texts; a lone value of another type is one bad text."""
    if isinstance(inputs, bytes | Mapping | Set) or not isinstance(inputs, Iterable):
        raise InvalidTextError(
            [(0, f"expected str or an iterable of str, got {type(inputs).__name__}")]
        )
    return list(inputs)


def _raise_invalid(texts: list[Any]) -> None:
    invalid = [(i, reason) for i, text in enumerate(texts) if (reason := why_invalid(text))]
    if invalid:
        raise InvalidTextError(invalid)


class _NoBar:
    def update(self, n: int) -> None:
        """Do nothing."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _progress_bar(total: int, show: bool | None) -> Any:
    if show is None:
        show = logger.isEnabledFor(logging.INFO)
    if not show:
        return _NoBar()
    tqdm = require("tqdm", extra="train", purpose="a progress bar").tqdm
    return tqdm(total=total, unit="text", desc="encode")
