"""The `encode` family of methods over the bundles of a pack."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.encoder import Encoder
from mirror_rt.encoding.model_cache import ModelCache
from mirror_rt.errors import ConfigError, InvalidTextError, Setting, renumbered
from mirror_rt.keywords import with_visible_options
from mirror_rt.languages.routing import Languages, Router
from mirror_rt.pipeline.inputs import Texts, as_list, check_stream
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions, add_prompt
from mirror_rt.pipeline.prompts import DOCUMENT_NAMES, QUERY_NAMES
from mirror_rt.pipeline.results import EncodedTexts, empty_texts, place
from mirror_rt.tokens.tokenization import TokenPiece
from mirror_rt.tokens.windows import WINDOW_TEXTS, text_windows
from mirror_rt.vectors.quantization import Embeddings
from mirror_rt.vectors.search import cosine_similarity

T = TypeVar("T")
Rows = npt.NDArray[np.int64]


@with_visible_options(EncodeOptions)
class PackEncoder:
    """Encodes like an `Encoder`, each text with the bundle of its language.

    Every method takes `lang`: the tag of the texts' language, a tag (or None) for each text,
    `"auto"` to detect the language of each text, or None for the default of the pack. With
    `mixed_spaces`, one matrix may have rows of several vector spaces.
    """

    def __init__(
        self, router: Router, cache: ModelCache[str, Encoder], *, mixed_spaces: bool
    ) -> None:
        self.index = router.index
        self._router, self._cache, self._mixed_spaces = router, cache, mixed_spaces

    def encode(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Encode texts of one language or of several: [n, D] in their order, [D] for a string.

        The options are those of `Encoder.encode`. With `errors="nan"`, a text that cannot be
        encoded or whose language the pack lacks gets a row of NaN.

        Raises:
            InvalidTextError: texts cannot be encoded; the error has their positions in `inputs`.
            ConfigError: an option has an unusable value; the pack does not have the language; the
                number of tags is not that of the texts; or the bundles needed give vectors of
                different lengths or of different spaces.
            BundleError: a bundle that is needed cannot be loaded.
            ClosedError: the pack is closed.
        """
        return self._embeddings(inputs, lang, options)

    def encode_with_info(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> EncodedTexts:
        """Encode like `encode`, and report each text's number of tokens and whether it was cut."""
        return self._encode(as_list(inputs), lang, options)

    def encode_query(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Encode each text with the prompt `query` of its bundle, as `Encoder.encode_query`."""
        return self._embeddings(inputs, lang, options, QUERY_NAMES)

    def encode_document(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Encode with the prompt for documents of each bundle, as `Encoder.encode_document`."""
        return self._embeddings(inputs, lang, options, DOCUMENT_NAMES)

    def encode_iter(
        self,
        inputs: Iterable[str],
        lang: str | Iterable[str | None] | None = None,
        *,
        window: int = WINDOW_TEXTS,
        **options: Unpack[EncodeKeywords],
    ) -> Iterator[Embeddings]:
        """Encode a stream of any length in constant memory, to one vector [D] per text, in order.

        Arguments and errors are those of `Encoder.encode_iter` and `encode`; tags may be a stream,
        too. Every error, also that of an option, is raised when the text's window is reached.
        """
        check_stream(inputs, window)
        return self._stream(inputs, lang, window, options)

    async def aencode(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Encode in another thread, which also loads bundles, so that the event loop goes on.

        Cancelling the task ends the task at once, and its work in the thread after the batch that
        is running.
        """
        return await self._aside(inputs, lang, options)

    async def aencode_query(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Encode like `aencode`, with the prompts of `encode_query`."""
        return await self._aside(inputs, lang, options, QUERY_NAMES)

    async def aencode_document(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Encode like `aencode`, with the prompts of `encode_document`."""
        return await self._aside(inputs, lang, options, DOCUMENT_NAMES)

    def encode_tokens(
        self, inputs: Texts, lang: Languages = None, **options: Unpack[EncodeKeywords]
    ) -> list[npt.NDArray[np.float32]]:
        """Encode texts to one vector for each token, as `Encoder.encode_tokens`."""
        return self._each(inputs, lang, lambda encoder, own: encoder.encode_tokens(own, **options))

    def tokenize(self, inputs: Texts, lang: Languages = None) -> list[list[int]]:
        """Return the token ids of each text in its bundle, as `Encoder.tokenize`."""
        return self._each(inputs, lang, Encoder.tokenize)

    def token_pieces(
        self,
        inputs: Texts,
        lang: Languages = None,
        *,
        prompt: str = "",
        special_tokens: bool = True,
    ) -> list[list[TokenPiece]]:
        """Return all tokens of each text and their positions in it, as `Encoder.token_pieces`."""
        pieces = partial(Encoder.token_pieces, prompt=prompt, special_tokens=special_tokens)
        return self._each(inputs, lang, pieces)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the cosines of all rows of `a` [n, D] and `b` [m, D]: float32 [n, m]."""
        return cosine_similarity(a, b)

    def _embeddings(
        self,
        inputs: Texts,
        lang: Languages,
        options: EncodeKeywords,
        prompts: tuple[str, ...] = (),
        stop: threading.Event | None = None,
    ) -> Embeddings:
        embeddings = self._encode(as_list(inputs), lang, options, prompts, stop).embeddings
        return embeddings[0] if isinstance(inputs, str) else embeddings

    async def _aside(
        self,
        inputs: Texts,
        lang: Languages,
        options: EncodeKeywords,
        prompts: tuple[str, ...] = (),
    ) -> Embeddings:
        from mirror_rt.scheduling.tasks import run_in_thread

        inputs = inputs if isinstance(inputs, str) else as_list(inputs)
        return await run_in_thread(
            lambda stop: self._embeddings(inputs, lang, options, prompts, stop=stop)
        )

    def _stream(
        self,
        inputs: Iterable[str],
        lang: str | Iterable[str | None] | None,
        window: int,
        options: EncodeKeywords,
    ) -> Iterator[Embeddings]:
        tags = repeat(lang) if lang is None or isinstance(lang, str) else iter(lang)
        seen: set[str] = set()
        for start, texts, *_ in text_windows(inputs, window):
            own = list(islice(tags, len(texts)))
            with renumbered(range(start, start + len(texts))):
                part = self._encode(texts, own, options, seen=seen)
            yield from (row.copy() for row in part.embeddings)

    def _encode(
        self,
        texts: list[Any],
        lang: Languages,
        options: EncodeKeywords,
        prompts: tuple[str, ...] = (),
        stop: threading.Event | None = None,
        seen: set[str] | None = None,
    ) -> EncodedTexts:
        """Encode texts, with the first prompt in `prompts` that a bundle has.

        `seen` collects the bundles of a stream, whose vectors are checked like one matrix.
        """
        names, invalid = self._router.route_each(texts, lang)
        if invalid and options.get("errors", "raise") == "raise":
            raise InvalidTextError(invalid)
        groups = _groups(names) or {self.index.default: np.empty(0, dtype=np.int64)}
        refused, joined = dict(invalid), None
        used = set() if seen is None else seen
        used.update(name for row, name in enumerate(names) if row not in refused)
        self._check_comparable(sorted(used), options)
        for name, rows in groups.items():
            own = {i: refused[row] for i, row in enumerate(rows.tolist()) if row in refused}
            windows = text_windows([texts[row] for row in rows], invalid=own)
            with self._bundle(name, rows) as encoder:
                plan = encoder.pipeline.plan(**add_prompt(encoder.prompts, prompts, options))
                part = encoder.pipeline.encode(windows, plan, stop=stop)
            if joined is None:
                columns, dtype = part.embeddings.shape[1], part.embeddings.dtype
                joined = empty_texts(len(texts), columns, dtype)
            place(part, rows, joined)
        assert joined is not None
        return joined

    def _each(
        self,
        inputs: Texts,
        lang: Languages,
        work: Callable[[Encoder, list[str]], Iterable[T]],
    ) -> list[T]:
        """Give each bundle its texts, and put the results in the order of the texts."""
        texts = as_list(inputs)
        names, invalid = self._router.route_each(texts, lang)
        if invalid:
            raise InvalidTextError(invalid)
        results: dict[int, T] = {}
        for name, rows in _groups(names).items():
            with self._bundle(name, rows) as encoder:
                found = work(encoder, [texts[row] for row in rows])
            results.update(zip(rows.tolist(), found, strict=True))
        return [results[row] for row in range(len(texts))]

    @contextlib.contextmanager
    def _bundle(self, name: str, rows: Rows) -> Iterator[Encoder]:
        with self._cache.lease(name) as encoder, renumbered(rows.tolist()):
            yield encoder

    def _check_comparable(self, names: Sequence[str], options: EncodeKeywords) -> None:
        """Check that the vectors of these bundles may be rows of one matrix."""
        bundles = self.index.bundles
        by_dimension = {bundles[name].dimension: name for name in names}
        if len(by_dimension) > 1 and options.get("truncate_dim") is None:
            found = ", ".join(f"{name} {d}" for d, name in by_dimension.items())
            raise ConfigError(
                f"these texts need bundles with vectors of different lengths ({found}): encode "
                "them by language, or pass ",
                Setting("truncate_dim"),
            )
        if len({bundles[name].vector_space for name in names}) > 1 and not self._mixed_spaces:
            raise ConfigError(
                f"the bundles {', '.join(names)} have vector spaces of their own, so their vectors "
                "cannot be compared: encode the texts by language, align the pack (mirror-rt align "
                "PACK --dictionary FILE), or load it with mixed_spaces=True and keep the rows apart"
            )


def _groups(names: list[str]) -> dict[str, Any]:
    """Group texts by the name of their bundle: name -> positions of the texts, int64 [k]."""
    rows: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        rows.setdefault(name, []).append(i)
    return {name: np.array(positions) for name, positions in rows.items()}
