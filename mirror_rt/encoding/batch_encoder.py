"""The `encode` family of methods that users call, whatever engine runs the model."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Never, Protocol, Unpack, overload

import numpy.typing as npt

from mirror_rt.errors import InvalidTextError
from mirror_rt.keywords import ATTRIBUTES, refuse_unknown, with_visible_options
from mirror_rt.pipeline.inputs import Inputs, Texts, as_list, check_stream
from mirror_rt.pipeline.options import (
    EncodeKeywords,
    EncodeOptions,
    EncodePlan,
    OnError,
    OnTooLong,
    add_prompt,
)
from mirror_rt.pipeline.pipeline import EncodedTexts, Pipeline, Vectors
from mirror_rt.pipeline.prompts import DOCUMENT_NAMES, QUERY_NAMES, Prompts
from mirror_rt.progress import shows_progress
from mirror_rt.tokens.tokenization import TokenPiece
from mirror_rt.tokens.validity import find_invalid
from mirror_rt.tokens.windows import WINDOW_TEXTS, TextWindow, text_windows
from mirror_rt.vectors.quantization import EmbeddingPrecision, Embeddings
from mirror_rt.vectors.search import cosine_similarity

__all__ = ["BatchEncoder", "EmbeddingModel", "EncodedTexts", "Inputs", "Vectors", "as_list"]


class EmbeddingModel(Protocol):
    """The part of an encoder that evaluation needs."""

    def encode(self, inputs: list[str], *, normalize_embeddings: bool = True) -> Vectors:
        """Encode texts to float32 [n, D]."""

    @property
    def mask_token(self) -> str | None:
        """The tokenizer's mask token; None if it has none."""


@with_visible_options(EncodeOptions)
class BatchEncoder:
    """The `encode` family of methods over a pipeline, whichever model that pipeline has."""

    def __init__(self, pipeline: Pipeline, *, mask_token: str | None) -> None:
        self.pipeline = pipeline
        self._mask_token = mask_token

    @property
    def dimension(self) -> int:
        """The length D of an embedding."""
        return self.pipeline.model.dimension

    @property
    def max_length(self) -> int:
        """Most tokens of a text, special tokens included; see `on_too_long` for longer texts."""
        return self.pipeline.tokenizer.max_length

    @property
    def mask_token(self) -> str | None:
        """The tokenizer's mask token; None if it has none."""
        return self._mask_token

    @property
    def prompts(self) -> Prompts:
        """The prompts of the model."""
        return self.pipeline.defaults.prompts

    def tokenize(self, inputs: Texts) -> list[list[int]]:
        """Return the token ids of each text, with special tokens, without a prompt.

        Texts of more than `max_length` tokens are cut.

        Raises:
            InvalidTextError: some texts cannot be encoded; the error names each of them.
        """
        tokens = self.pipeline.tokenizer(_valid_texts(inputs)).tokens
        return [tokens.ids[a:b].tolist() for a, b in tokens.spans()]

    def token_pieces(
        self, inputs: Texts, *, prompt: str = "", special_tokens: bool = True
    ) -> list[list[TokenPiece]]:
        """Return all tokens of each text and their positions in it; nothing is cut.

        Args:
            inputs: one string, or any iterable of strings.
            prompt: put before each text; positions count from the beginning of the prompt.
            special_tokens: also return the special tokens that the model puts around a text.

        Raises:
            InvalidTextError: some texts cannot be encoded; the error names each of them.
        """
        return [
            self.pipeline.tokenizer.pieces(prompt + text, special_tokens=special_tokens)
            for text in _valid_texts(inputs)
        ]

    @overload
    def encode(
        self,
        inputs: Texts,
        batch_size: int = ...,
        normalize_embeddings: bool | None = ...,
        show_progress_bar: bool | None = ...,
        truncate_dim: int | None = ...,
        *,
        precision: Literal["float32"] = ...,
        ranges: npt.ArrayLike | None = ...,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        on_too_long: OnTooLong = ...,
        errors: OnError = ...,
    ) -> Vectors: ...

    @overload
    def encode(
        self,
        inputs: Texts,
        batch_size: int = ...,
        normalize_embeddings: bool | None = ...,
        show_progress_bar: bool | None = ...,
        truncate_dim: int | None = ...,
        *,
        precision: EmbeddingPrecision,
        ranges: npt.ArrayLike | None = ...,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        on_too_long: OnTooLong = ...,
        errors: OnError = ...,
    ) -> Embeddings: ...

    def encode(  # noqa: D417  # the others have their descriptions in one place
        self,
        inputs: Texts,
        batch_size: int = 32,
        normalize_embeddings: bool | None = None,
        show_progress_bar: bool | None = None,
        truncate_dim: int | None = None,
        *,
        precision: EmbeddingPrecision = "float32",
        ranges: npt.ArrayLike | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        on_too_long: OnTooLong = "truncate",
        errors: OnError = "raise",
        **unknown: Never,
    ) -> Embeddings:
        """Encode texts.

        Args:
            inputs: one string, or any iterable of strings.
            show_progress_bar: None shows one if the logger `mirror_rt` is at level INFO.

        The other arguments are the fields of `EncodeOptions`, which explains them.

        Returns:
            [n, D] in the order of `inputs`, [D] for a single string; float32, float16, int8 or
            uint8 depending on `precision`. The binary precisions have D / 8 columns, rounded up.

        Raises:
            InvalidTextError: a text is not a string, is empty or blank, is not valid Unicode, or
                is too long and `on_too_long` is `"error"`.
            ConfigError: an option has an unusable value.
        """
        if unknown:
            refuse_unknown("encode", unknown, EncodeKeywords.__annotations__)
        plan = self.pipeline.plan(
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            precision=precision,
            ranges=ranges,
            prompt_name=prompt_name,
            prompt=prompt,
            on_too_long=on_too_long,
            errors=errors,
        )
        if isinstance(inputs, str) and not shows_progress(show_progress_bar):
            vector = self.pipeline.encode_one(inputs, plan)
            if vector is not None:
                return vector
        windows = text_windows(as_list(inputs))
        encoded = self.pipeline.encode(windows, plan, show_progress_bar).embeddings
        return encoded[0] if isinstance(inputs, str) else encoded

    def encode_with_info(
        self,
        inputs: Texts,
        show_progress_bar: bool | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> EncodedTexts:
        """Encode texts, and report how many tokens each one had and whether it was cut.

        Arguments and errors are those of `encode`; a single string counts as a list of one.
        """
        plan = self.pipeline.plan(**options)
        return self.pipeline.encode(text_windows(as_list(inputs)), plan, show_progress_bar)

    def encode_query(self, inputs: Texts, **options: Unpack[EncodeKeywords]) -> Embeddings:
        """Encode with the model's prompt `query`, unless it has none or a prompt is given."""
        return self.encode(inputs, **add_prompt(self.prompts, QUERY_NAMES, options))

    def encode_document(self, inputs: Texts, **options: Unpack[EncodeKeywords]) -> Embeddings:
        """Encode with the prompt `document` or `passage`, unless there is none or one is given."""
        return self.encode(inputs, **add_prompt(self.prompts, DOCUMENT_NAMES, options))

    def encode_iter(
        self,
        inputs: Iterable[str],
        *,
        window: int = WINDOW_TEXTS,
        **options: Unpack[EncodeKeywords],
    ) -> Iterator[Embeddings]:
        """Encode a stream of any length in constant memory, to one vector [D] per text, in order.

        Args:
            inputs: any iterable of strings. It is read up to two windows ahead.
            window: number of texts that are sorted by length together; a smaller window means
                more padding, but gives the first vectors sooner.
            **options: those of `encode`.

        Raises:
            InvalidTextError, ConfigError: as `encode`, but only once the text's window is reached.
        """
        plan = self.pipeline.plan(**options)
        check_stream(inputs, window)
        return self._rows(text_windows(inputs, window), plan)

    async def aencode(self, inputs: Texts, **options: Unpack[EncodeKeywords]) -> Embeddings:
        """Encode in other threads, so that the event loop goes on.

        Small calls that run at the same time share batches (see `Scheduler`); a call of more than
        256 texts, or with a `batch_size`, has batches of its own. Cancelling the task ends the
        task at once, and its work in the threads after the batch that is running.
        """
        from mirror_rt.scheduling.tasks import SHARED_TEXTS, run_in_thread, scheduler_of

        texts = as_list(inputs)
        if len(texts) <= SHARED_TEXTS and "batch_size" not in options:
            embeddings = await scheduler_of(self).aencode(texts, **options)
        else:
            plan = self.pipeline.plan(**options)

            def work(stop: threading.Event) -> Embeddings:
                return self.pipeline.encode(text_windows(texts), plan, stop=stop).embeddings

            embeddings = await run_in_thread(work)
        return embeddings[0] if isinstance(inputs, str) else embeddings

    async def aencode_query(self, inputs: Texts, **options: Unpack[EncodeKeywords]) -> Embeddings:
        """Encode like `aencode`, with the prompt of `encode_query`."""
        return await self.aencode(inputs, **add_prompt(self.prompts, QUERY_NAMES, options))

    async def aencode_document(
        self, inputs: Texts, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Encode like `aencode`, with the prompt of `encode_document`."""
        return await self.aencode(inputs, **add_prompt(self.prompts, DOCUMENT_NAMES, options))

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Vectors:
        """Return the cosines of all rows of `a` [n, D] and `b` [m, D]: float32 [n, m]."""
        return cosine_similarity(a, b)

    def __getattr__(self, name: str) -> Any:
        hint = f": write {ATTRIBUTES[name]}" if name in ATTRIBUTES else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}", name=name)

    def _rows(self, windows: Iterable[TextWindow], plan: EncodePlan) -> Iterator[Embeddings]:
        for part in self.pipeline.encode_windows(windows, plan):
            # Yield copies, so that a vector that the caller keeps does not keep its whole window.
            yield from (row.copy() for row in part.embeddings)


def _valid_texts(inputs: Texts) -> list[str]:
    texts = as_list(inputs)
    if invalid := find_invalid(texts):
        raise InvalidTextError(list(invalid.items()))
    return texts
