"""Hold the model of an adapter, or the way to load it, and the options of its calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from mirror_rt.bundle.manifest import Layout
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.encoding.loaded_bundle import LoadedBundle
from mirror_rt.encoding.tables import TableEncoder
from mirror_rt.errors import ConfigError, InvalidTextError
from mirror_rt.inference.load_options import LoadKeywords
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import as_list
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.reranking.options import PredictKeywords
from mirror_rt.reranking.reranker import Reranker
from mirror_rt.vectors.quantization import Embeddings

M = TypeVar("M")

# Adapters of one model share the loaded model: libraries copy, clone and unpickle adapters freely.
_loaded: WeakValueDictionary[str, Any] = WeakValueDictionary()
_loading = threading.Lock()


class TextEncoder(Protocol):
    """The interface that adapters need; `mirror_rt.Encoder` and `mirror_rt.Client` provide it.

    Results are [n, D], or [D] for a single string.
    """

    @property
    def dimension(self) -> int:
        """Return the length D of an embedding."""

    def encode(self, inputs: str | list[str], *args: Any, **options: Any) -> Embeddings:
        """Encode texts without a prompt for queries or documents."""

    def encode_query(self, inputs: str | list[str], *args: Any, **options: Any) -> Embeddings:
        """Encode queries."""

    def encode_document(self, inputs: str | list[str], *args: Any, **options: Any) -> Embeddings:
        """Encode documents, among which queries search."""

    async def aencode_query(
        self, inputs: str | list[str], *args: Any, **options: Any
    ) -> Embeddings:
        """Call `encode_query` without blocking the event loop."""

    async def aencode_document(
        self, inputs: str | list[str], *args: Any, **options: Any
    ) -> Embeddings:
        """Call `encode_document` without blocking the event loop."""


class LazyModel(Generic[M]):
    """A model that is loaded on first use, with fixed options for its calls.

    It is pickled without its model, which is loaded again after unpickling.
    """

    _kind: ClassVar[type[Any]]  # the class that loads it
    _method: ClassVar[str] = "encode_query"  # by which such a model is known
    _calls: ClassVar[str] = "encode_kwargs"  # name of the options of its calls
    _keywords: ClassVar[type] = EncodeKeywords  # those options

    def __init__(
        self,
        model: str | Path | M,
        model_kwargs: Mapping[str, Any] | None = None,
        call_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.model_kwargs = dict(model_kwargs or {})
        self._call_kwargs = dict(call_kwargs or {})
        refuse_unknown("model_kwargs", self.model_kwargs, LoadKeywords.__annotations__)
        refuse_unknown(self._calls, self._call_kwargs, self._keywords.__annotations__)
        self._loaded: M | None = None
        if not isinstance(model, str | Path):
            if not hasattr(model, self._method):
                raise ConfigError(
                    field="model",
                    expected=f"the path or hub name of a bundle, or a loaded {self._kind.__name__}",
                    value=model,
                )
            if self.model_kwargs:
                raise ConfigError("model_kwargs are for a path or name, and model is loaded")
            self._loaded = model

    def load(self) -> M:
        """Return the model, loading it on first use; errors are those of `Encoder.load`."""
        if self._loaded is None:
            self._loaded = _load(self._kind, str(self.model), self.model_kwargs)
        return self._loaded

    async def aload(self) -> M:
        """Call `load` without blocking the event loop."""
        if self._loaded is None:
            import asyncio  # here: it takes 30 ms, which synchronous programs save

            await asyncio.to_thread(self.load)
        return self.load()

    @property
    def name(self) -> str:
        """Return the path or name of the model, for people."""
        if isinstance(self.model, str | Path):
            return str(self.model)
        return str(getattr(self.model, "folder", repr(self.model)))

    def config(self) -> dict[str, Any]:
        """Return the arguments that make an equal object, with the model by name."""
        if isinstance(self.model, LoadedBundle):
            model_kwargs = dict(self.model.load_options)
        elif isinstance(self.model, str | Path):
            model_kwargs = self.model_kwargs
        else:
            raise ConfigError(
                f"{self.model!r} cannot be stored: give the path or hub name of a bundle instead"
            )
        return {
            "model": self.name,
            "model_kwargs": dict(model_kwargs),
            self._calls: dict(self._call_kwargs),
        }

    def __reduce__(self) -> tuple[type[LazyModel[M]], tuple[Any, ...]]:
        return type(self), (self.model, self.model_kwargs, self._call_kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyModel[M]:
        return self


class LazyEncoder(LazyModel[TextEncoder]):
    """An encoder that is loaded on first use, with fixed options for its calls.

    Args:
        model: path or hub name of a bundle, or an encoder.
        model_kwargs: options of `Encoder.load` (`revision`, `variant`, `threads` ...).
        encode_kwargs: options of `Encoder.encode` (`truncate_dim`, `on_too_long` ...).

    Raises:
        ConfigError: `model` is none of these, or an option is unknown.
    """

    _kind = Encoder

    def __init__(
        self,
        model: str | Path | TextEncoder,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, model_kwargs, encode_kwargs)
        self.encode_kwargs = self._call_kwargs

    @property
    def local_encoder(self) -> Encoder:
        """Return the encoder, which must run in this process: not a `Client`."""
        if not isinstance(encoder := self.load(), Encoder):
            expected = "the path or hub name of a bundle"
            raise ConfigError(field="model", expected=expected, value=self.model)
        return encoder

    @property
    def dimension(self) -> int:
        """Return the length of a row of the result."""
        kept = self.encode_kwargs.get("truncate_dim")
        dimension = self.load().dimension if kept is None else int(kept)
        packed = self.encode_kwargs.get("precision") in ("binary", "ubinary")
        return -(-dimension // 8) if packed else dimension

    def encode(self, texts: Iterable[str]) -> Embeddings:
        """Encode texts as neither queries nor documents: [n, D]."""
        return self.load().encode(_several(texts), **self.encode_kwargs)

    def query(self, text: str) -> Embeddings:
        """Encode one query: [D]."""
        return self.load().encode_query(_one(text), **self.encode_kwargs)

    def queries(self, texts: Iterable[str]) -> Embeddings:
        """Encode queries: [n, D]."""
        return self.load().encode_query(_several(texts), **self.encode_kwargs)

    def documents(self, texts: Iterable[str]) -> Embeddings:
        """Encode documents: [n, D]."""
        return self.load().encode_document(_several(texts), **self.encode_kwargs)

    async def aquery(self, text: str) -> Embeddings:
        """Call `query` without blocking the event loop."""
        encoder = await self.aload()
        return await encoder.aencode_query(_one(text), **self.encode_kwargs)

    async def adocuments(self, texts: Iterable[str]) -> Embeddings:
        """Call `documents` without blocking the event loop."""
        encoder = await self.aload()
        return await encoder.aencode_document(_several(texts), **self.encode_kwargs)


class LazyReranker(LazyModel[Reranker]):
    """A cross-encoder that is loaded on first use, with fixed options for its calls.

    The model is the path or hub name of a cross-encoder's bundle, or a `Reranker`; the options are
    those of `Reranker.load`, and those of `Reranker.predict`, `predict_kwargs` in adapters. Any
    other is a ConfigError.
    """

    _kind = Reranker
    _method = "rank"
    _calls = "predict_kwargs"
    _keywords = PredictKeywords

    def rank(self, query: str, documents: list[str], top_k: int | None) -> list[dict[str, Any]]:
        """Rank documents by a query, and return the `top_k` best (None for all)."""
        return self.load().rank(query, documents, top_k=top_k, **self._call_kwargs)

    async def arank(
        self, query: str, documents: list[str], top_k: int | None
    ) -> list[dict[str, Any]]:
        """Call `rank` without blocking the event loop."""
        reranker = await self.aload()
        return await reranker.arank(query, documents, top_k=top_k, **self._call_kwargs)


class Adapter:
    """The base of adapters whose arguments are those of `LazyEncoder`."""

    _loads_at_once = True  # so that an error comes now, not at the first query

    def __init__(
        self,
        model: str | Path | TextEncoder,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._lazy = LazyEncoder(model, model_kwargs, encode_kwargs)
        self._check()
        if self._loads_at_once:
            self._lazy.load()

    def _check(self) -> None:
        """Raise ConfigError for options that the library cannot take, before loading."""


@dataclass(eq=False, repr=False)
class TableAdapter:
    """The base of adapters that add a column of vectors to the tables of an engine.

    Args:
        model: path (on every machine) or hub name of a bundle.
        text_column: column of the texts.
        vector_column: column of the vectors.
        columns: columns to keep; None for all.
        model_kwargs: options of `Encoder.load`.
        encode_kwargs: options of `Encoder.encode`.

    Raises:
        ConfigError: an option is unknown or has an unusable value.
    """

    model: str | Path
    _: KW_ONLY
    text_column: str = "text"
    vector_column: str = "embedding"
    columns: Sequence[str] | None = None
    model_kwargs: Mapping[str, Any] | None = None
    encode_kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._lazy = LazyEncoder(self.model, self.model_kwargs, self.encode_kwargs)

    def _table(self, encoder: Encoder) -> TableEncoder:
        return TableEncoder(
            encoder,
            text_column=self.text_column,
            vector_column=self.vector_column,
            columns=self.columns,
            **self._lazy.encode_kwargs,
        )


def _one(text: Any) -> str:
    if not isinstance(text, str):
        raise InvalidTextError([(0, f"expected one str, got {type(text).__name__}")])
    return text


def _several(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise ConfigError(f"expected a list of texts, got one: {texts[:40]!r}")
    return as_list(texts)


def _load(kind: type[Any], model: str, options: dict[str, Any]) -> Any:
    """Load a bundle, or return that of another adapter if its files have not changed."""
    manifest = Path(model, Layout.manifest)
    local = manifest.is_file()
    which = (str(manifest.absolute()), manifest.stat().st_mtime_ns) if local else model
    key = json.dumps([kind.__name__, which, options], sort_keys=True, default=repr)
    with _loading:
        loaded = _loaded.get(key)
        if loaded is None:
            loaded = _loaded[key] = kind.load(model, **options)
    return loaded
