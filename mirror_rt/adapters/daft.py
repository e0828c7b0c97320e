"""Adapt encoders to Daft: `MirrorProvider` for `daft.functions.embed_text`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirror_rt.adapters.lazy import LazyEncoder
from mirror_rt.errors import ConfigError, importing
from mirror_rt.keywords import refuse_unknown

with importing("daft", extra="daft", purpose="mirror_rt.adapters.daft"):
    from daft import DataType
    from daft.ai.protocols import TextEmbedder, TextEmbedderDescriptor
    from daft.ai.provider import Provider
    from daft.ai.typing import EmbeddingDimensions, UDFOptions

_BATCH_SIZE = 4096
_OF_DAFT = ("batch_size", "max_retries", "on_error", "concurrency", "num_gpus")


class MirrorProvider(Provider):
    """Provide the vectors of bundles, as `Encoder.encode` makes them.

        embed_text(daft.col("text"), provider=MirrorProvider(), model="all-MiniLM-L6-v2")

    `dimensions` keeps the first dimensions alone. Options of Daft (`batch_size`, 4096 by default,
    `concurrency` and so on) may be given to `embed_text`. A text that cannot be encoded has a null.

    Args:
        model_kwargs: options of `Encoder.load`.
        encode_kwargs: options of `Encoder.encode`; the precision is float32.

    Raises:
        ConfigError: an option is unknown.
    """

    def __init__(
        self,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._model_kwargs = dict(model_kwargs or {})
        self._encode_kwargs = {"errors": "nan"} | dict(encode_kwargs or {})
        if self._encode_kwargs.get("precision", "float32") != "float32":
            raise ConfigError("precision must be float32 for Daft, whose vectors are of that type")

    @property
    def name(self) -> str:
        """Return the name under which a session keeps the provider."""
        return "mirror-rt"

    def get_text_embedder(
        self, model: str | None = None, dimensions: int | None = None, **options: Any
    ) -> MirrorEmbedderDescriptor:
        """Describe an encoder.

        Args:
            model: path (on every machine) or hub name of a bundle.
            dimensions: number of dimensions to keep; None for all.
            **options: of Daft: `batch_size`, `max_retries`, `on_error`, `concurrency`, `num_gpus`.

        Raises:
            ConfigError: there is no model, or an option is unknown.
        """
        if model is None:
            raise ConfigError("model must be the path or hub name of a bundle, got None")
        refuse_unknown("embed_text", options, _OF_DAFT)
        kept = {} if dimensions is None else {"truncate_dim": dimensions}
        lazy = LazyEncoder(model, self._model_kwargs, self._encode_kwargs | kept)
        return MirrorEmbedderDescriptor(lazy, {"batch_size": _BATCH_SIZE} | options)


@dataclass
class MirrorEmbedderDescriptor(TextEmbedderDescriptor):
    """Describe an encoder by its name; workers load it.

    Attributes:
        lazy: which encoder, and the options of its calls.
        options: those of Daft.
    """

    lazy: LazyEncoder
    options: dict[str, Any] = field(default_factory=dict)

    def get_provider(self) -> str:
        """Return the name of the provider."""
        return "mirror-rt"

    def get_model(self) -> str:
        """Return the path or name of the model."""
        return self.lazy.name

    def get_options(self) -> dict[str, Any]:
        """Return the options of Daft."""
        return dict(self.options)

    def get_udf_options(self) -> UDFOptions:
        """Return the options of Daft, in its own class."""
        return UDFOptions(**self.options)

    def get_dimensions(self) -> EmbeddingDimensions:
        """Return the length and the type of a vector; it loads the model."""
        return EmbeddingDimensions(size=self.lazy.dimension, dtype=DataType.float32())

    def instantiate(self) -> MirrorTextEmbedder:
        """Load the encoder, in a worker."""
        self.lazy.load()
        return MirrorTextEmbedder(self.lazy)


class MirrorTextEmbedder(TextEmbedder):
    """Embed lists of texts, which may contain None, for Daft."""

    def __init__(self, lazy: LazyEncoder) -> None:
        self._lazy = lazy

    def embed_text(self, text: list[str]) -> list[Any]:
        """Return a vector [D] for each text, and None for one that cannot be encoded."""
        vectors = self._lazy.encode(text)
        return [None if row[0] != row[0] else row for row in vectors]
