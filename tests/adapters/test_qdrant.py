"""Qdrant: the client's local mode, in both ways."""

import pickle
import uuid

import numpy as np
import pytest

pytest.importorskip("qdrant_client")

from qdrant_client import AsyncQdrantClient, QdrantClient, models

from mirror_rt import ConfigError
from mirror_rt.adapters.qdrant import MirrorEmbedder
from mirror_rt.sparse.vectors import SparseVector
from mirror_rt.vectors.maxsim import maxsim
from rounding import ANY_BATCH, SCORE_ERROR


@pytest.fixture
def embedder(model):
    return MirrorEmbedder(model)


def test_a_collection_is_searched(embedder, documents, query, ranked):
    client = QdrantClient(":memory:")
    client.create_collection("texts", vectors_config=embedder.vector_params())
    payloads = [{"length": len(text)} for text in documents]
    client.upsert("texts", embedder.points(documents, ids=range(len(documents)), payloads=payloads))
    found = client.query_points("texts", query=embedder.query(query), limit=3).points
    assert [point.payload["document"] for point in found] == ranked[:3]
    assert [point.id for point in found] == [documents.index(text) for text in ranked[:3]]
    assert all(point.payload["length"] == len(point.payload["document"]) for point in found)
    client.upload_points("texts", embedder.points(["one more"]))
    assert client.count("texts").count == len(documents) + 1


def test_in_tasks(embedder, documents, query, ranked, beside):
    async def search():
        client = AsyncQdrantClient(":memory:")
        await client.create_collection("texts", vectors_config=embedder.vector_params())
        await client.upsert("texts", await embedder.apoints(documents))
        found = await client.query_points("texts", query=await embedder.aquery(query), limit=3)
        return [point.payload["document"] for point in found.points]

    assert beside(search()) == ranked[:3]


def test_points(embedder, documents, document_vectors, model):
    points = embedder.points(iter(documents))
    np.testing.assert_allclose([point.vector for point in points], document_vectors, atol=ANY_BATCH)
    assert len({uuid.UUID(point.id) for point in points}) == len(documents)
    half = MirrorEmbedder(model, encode_kwargs={"precision": "float16", "truncate_dim": 8})
    params = half.vector_params(models.Distance.DOT, on_disk=True)
    assert (params.size, params.datatype, params.on_disk) == (8, models.Datatype.FLOAT16, True)
    assert len(half.points(documents)[0].vector) == 8
    assert len(pickle.loads(pickle.dumps(half)).query("a")) == 8


def test_bad_input(embedder, model):
    with pytest.raises(ConfigError, match="expected as many ids as texts, 2, got 1"):
        embedder.points(["a", "b"], ids=[1])
    with pytest.raises(ConfigError, match="expected as many payloads as texts, 1, got 0"):
        embedder.points(["a"], payloads=[])
    with pytest.raises(ConfigError, match="precision must be float32 or float16 for Qdrant"):
        MirrorEmbedder(model, encode_kwargs={"precision": "int8"})


def test_vectors_of_tokens_and_of_words(token_vectors):
    """As guides/late-interaction.md and guides/sparse.md say that they are stored."""
    query, stored = token_vectors[0], token_vectors[1:]
    expected = maxsim([query], stored)[0]
    client = QdrantClient(":memory:")
    client.create_collection(
        "texts",
        vectors_config=models.VectorParams(
            size=query.shape[1],
            distance=models.Distance.DOT,
            multivector_config=models.MultiVectorConfig(
                comparator=models.MultiVectorComparator.MAX_SIM
            ),
        ),
        sparse_vectors_config={"words": models.SparseVectorParams()},
    )
    words = [
        SparseVector(np.array([i, 7], np.int32), np.array([1, i], np.float32)).as_dict()
        for i in range(len(stored))
    ]
    points = [
        models.PointStruct(
            id=i, vector={"": vectors.tolist(), "words": models.SparseVector(**words[i])}
        )
        for i, vectors in enumerate(stored)
    ]
    client.upsert("texts", points)
    found = client.query_points("texts", query=query.tolist()).points
    assert [point.id for point in found] == list(np.argsort(-expected))
    for point in found:
        assert point.score == pytest.approx(expected[point.id], abs=SCORE_ERROR)
    asked = models.SparseVector(**words[3])
    (best, *_) = client.query_points("texts", query=asked, using="words").points
    assert (best.id, best.score) == (len(stored) - 1, 3 * (len(stored) - 1))
