"""Adapt encoders to Qdrant: `MirrorEmbedder` makes points and queries for qdrant-client."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from mirror_rt.adapters.lazy import Adapter
from mirror_rt.errors import ConfigError, importing
from mirror_rt.pipeline.inputs import as_list
from mirror_rt.vectors.quantization import Embeddings

with importing("qdrant_client", extra="qdrant", purpose="mirror_rt.adapters.qdrant"):
    from qdrant_client.models import Datatype, Distance, PointStruct, VectorParams

_DATATYPES = {"float32": Datatype.FLOAT32, "float16": Datatype.FLOAT16}


class MirrorEmbedder(Adapter):
    """Make arguments for the methods of `QdrantClient`; its own are those of `LazyEncoder`.

        client.create_collection("texts", vectors_config=embedder.vector_params())
        client.upsert("texts", points=embedder.points(texts))
        client.query_points("texts", query=embedder.query("a question"))

    Raises:
        ConfigError: the precision is not a float type; Qdrant quantises by itself
            (`quantization_config`).
        MirrorError: the model cannot be loaded.
    """

    def _check(self) -> None:
        self._precision = self._lazy.encode_kwargs.get("precision", "float32")
        if self._precision not in _DATATYPES:
            raise ConfigError(
                f"precision must be float32 or float16 for Qdrant, got {self._precision!r}: it "
                "quantises by itself (quantization_config of create_collection)"
            )

    def vector_params(self, distance: Distance = Distance.COSINE, **options: Any) -> VectorParams:
        """Return the `vectors_config` of a collection; options are those of `VectorParams`."""
        return VectorParams(
            size=self._lazy.dimension,
            distance=distance,
            datatype=_DATATYPES[self._precision],
            **options,
        )

    def points(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[int | str] | None = None,
        payloads: Iterable[Mapping[str, Any]] | None = None,
    ) -> list[PointStruct]:
        """Make points of texts, with `encode_document`.

        Args:
            texts: texts for the `vector`, and for `document` in the payload.
            ids: one integer or UUID per text; None for new UUIDs.
            payloads: one payload per text, added to the point's own; None for none.

        Raises:
            ConfigError: there are not as many ids or payloads as texts.
            InvalidTextError: a text cannot be encoded.
        """
        texts = as_list(texts)
        return _points(texts, ids, payloads, self._lazy.documents(texts))

    async def apoints(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[int | str] | None = None,
        payloads: Iterable[Mapping[str, Any]] | None = None,
    ) -> list[PointStruct]:
        """Do the same as `points` without blocking the event loop, for `AsyncQdrantClient`."""
        texts = as_list(texts)
        return _points(texts, ids, payloads, await self._lazy.adocuments(texts))

    def query(self, text: str) -> list[float]:
        """Return the vector of a query, made with `encode_query`."""
        return self._lazy.query(text).tolist()

    async def aquery(self, text: str) -> list[float]:
        """Do the same as `query` without blocking the event loop."""
        return (await self._lazy.aquery(text)).tolist()


def _points(
    texts: list[str],
    ids: Iterable[int | str] | None,
    payloads: Iterable[Mapping[str, Any]] | None,
    vectors: Embeddings,
) -> list[PointStruct]:
    ids = [uuid.uuid4().hex for _ in texts] if ids is None else list(ids)
    payloads = [{} for _ in texts] if payloads is None else list(payloads)
    for name, given in (("ids", ids), ("payloads", payloads)):
        if len(given) != len(texts):
            raise ConfigError(f"expected as many {name} as texts, {len(texts)}, got {len(given)}")
    return [
        PointStruct(id=id_, vector=vector, payload={"document": text, **payload})
        for id_, vector, text, payload in zip(ids, vectors.tolist(), texts, payloads, strict=True)
    ]
