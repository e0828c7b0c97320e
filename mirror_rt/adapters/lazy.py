"""Hold what every adapter needs: an encoder, or how to load one, and the options of its calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from mirror_rt.bundle.manifest import Layout
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.encoding.tables import TableEncoder
from mirror_rt.errors import ConfigError, InvalidTextError
from mirror_rt.inference.load_options import LoadKeywords
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import as_list
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.vectors.quantization import Embeddings

# Adapters of one model share an encoder: libraries copy, clone and unpickle adapters freely.
_loaded: WeakValueDictionary[str, Encoder] = WeakValueDictionary()
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


class LazyEncoder:
    """An encoder that is loaded on first use, with fixed options for its calls.

    It is pickled without its model, which is loaded again after unpickling.

    Args:
        model: path or hub name of a bundle, or an encoder.
        model_kwargs: options of `Encoder.load` (`revision`, `variant`, `threads` ...).
        encode_kwargs: options of `Encoder.encode` (`truncate_dim`, `on_too_long` ...).

    Raises:
        ConfigError: `model` is none of these, or an option is unknown.
    """

    def __init__(
        self,
        model: str | Path | TextEncoder,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.model_kwargs = dict(model_kwargs or {})
        self.encode_kwargs = dict(encode_kwargs or {})
        refuse_unknown("model_kwargs", self.model_kwargs, LoadKeywords.__annotations__)
        refuse_unknown("encode_kwargs", self.encode_kwargs, EncodeKeywords.__annotations__)
        self._encoder: TextEncoder | None = None
        if not isinstance(model, str | Path):
            if not hasattr(model, "encode_query"):
                raise ConfigError(
                    field="model",
                    expected="the path or hub name of a bundle, or an Encoder",
                    value=model,
                )
            if self.model_kwargs:
                raise ConfigError("model_kwargs are for a path or name, and model is an encoder")
            self._encoder = model

    @property
    def encoder(self) -> TextEncoder:
        """Return the encoder, loading it on first use; errors are those of `Encoder.load`."""
        if self._encoder is None:
            self._encoder = _load(str(self.model), self.model_kwargs)
        return self._encoder

    @property
    def local_encoder(self) -> Encoder:
        """Return the encoder, which must run in this process: not a `Client`."""
        if not isinstance(self.encoder, Encoder):
            raise ConfigError(
                field="model", expected="the path or hub name of a bundle", value=self.model
            )
        return self.encoder

    def load(self) -> None:
        """Load the encoder now, so that an error comes now."""
        _ = self.encoder

    @property
    def name(self) -> str:
        """Return the path or name of the model, for people."""
        if isinstance(self.model, str | Path):
            return str(self.model)
        return str(getattr(self.model, "folder", repr(self.model)))

    @property
    def dimension(self) -> int:
        """Return the length of a row of the result."""
        kept = self.encode_kwargs.get("truncate_dim")
        dimension = self.encoder.dimension if kept is None else int(kept)
        packed = self.encode_kwargs.get("precision") in ("binary", "ubinary")
        return -(-dimension // 8) if packed else dimension

    def config(self) -> dict[str, Any]:
        """Return the arguments that make an equal object, with the model by name."""
        if isinstance(self.model, Encoder):
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
            "encode_kwargs": dict(self.encode_kwargs),
        }

    def encode(self, texts: Iterable[str]) -> Embeddings:
        """Encode texts as neither queries nor documents: [n, D]."""
        return self.encoder.encode(_several(texts), **self.encode_kwargs)

    def query(self, text: str) -> Embeddings:
        """Encode one query: [D]."""
        return self.encoder.encode_query(_one(text), **self.encode_kwargs)

    def queries(self, texts: Iterable[str]) -> Embeddings:
        """Encode queries: [n, D]."""
        return self.encoder.encode_query(_several(texts), **self.encode_kwargs)

    def documents(self, texts: Iterable[str]) -> Embeddings:
        """Encode documents: [n, D]."""
        return self.encoder.encode_document(_several(texts), **self.encode_kwargs)

    async def aquery(self, text: str) -> Embeddings:
        """Call `query` without blocking the event loop."""
        encoder = await self._aload()
        return await encoder.aencode_query(_one(text), **self.encode_kwargs)

    async def adocuments(self, texts: Iterable[str]) -> Embeddings:
        """Call `documents` without blocking the event loop."""
        encoder = await self._aload()
        return await encoder.aencode_document(_several(texts), **self.encode_kwargs)

    async def _aload(self) -> TextEncoder:
        if self._encoder is None:
            import asyncio  # here: it takes 30 ms, which synchronous programs save

            await asyncio.to_thread(self.load)
        return self.encoder

    def __reduce__(self) -> tuple[type[LazyEncoder], tuple[Any, ...]]:
        return LazyEncoder, (self.model, self.model_kwargs, self.encode_kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyEncoder:
        return self


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
        """Raise ConfigError for what the library cannot take, before the model is loaded."""


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


def _load(model: str, options: dict[str, Any]) -> Encoder:
    """Load a bundle, or return the encoder of another adapter if its bundle has not changed."""
    manifest = Path(model, Layout.manifest)
    local = manifest.is_file()
    which = (str(manifest.absolute()), manifest.stat().st_mtime_ns) if local else model
    key = json.dumps([which, options], sort_keys=True, default=repr)
    with _loading:
        encoder = _loaded.get(key)
        if encoder is None:
            encoder = _loaded[key] = Encoder.load(model, **options)
    return encoder


def _one(text: Any) -> str:
    if not isinstance(text, str):
        raise InvalidTextError([(0, f"expected one str, got {type(text).__name__}")])
    return text


def _several(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise ConfigError(f"expected a list of texts, got one: {texts[:40]!r}")
    return as_list(texts)
