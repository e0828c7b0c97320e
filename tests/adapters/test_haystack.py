"""Haystack: pipelines that index and search, run in both ways, stored as YAML."""

import numpy as np
import pytest

pytest.importorskip("haystack")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore

from mirror_rt import ConfigError, Encoder, Reranker
from mirror_rt.adapters.haystack import MirrorDocumentEmbedder, MirrorRanker, MirrorTextEmbedder
from rounding import ANY_BATCH, SCORE_ERROR


def test_a_pipeline_indexes_and_searches(model, documents, query, ranked):
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    index = Pipeline()
    index.add_component("embedder", MirrorDocumentEmbedder(str(model)))
    index.add_component("writer", DocumentWriter(store))
    index.connect("embedder.documents", "writer.documents")
    index.run({"embedder": {"documents": [Document(content=text) for text in documents]}})

    search = Pipeline()
    search.add_component("embedder", MirrorTextEmbedder(str(model)))
    search.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=3))
    search.connect("embedder.embedding", "retriever.query_embedding")
    found = search.run({"embedder": {"text": query}})["retriever"]["documents"]
    assert [document.content for document in found] == ranked[:3]


def test_a_pipeline_is_stored(model, documents, document_vectors):
    pipeline = Pipeline()
    pipeline.add_component(
        "embedder", MirrorDocumentEmbedder(Encoder.load(model), encode_kwargs={"batch_size": 4})
    )
    text = pipeline.dumps()
    again = Pipeline.loads(text, allowed_modules=["mirror_rt"])
    assert again.dumps() == text
    found = again.run({"embedder": {"documents": [Document(content=text) for text in documents]}})
    vectors = [document.embedding for document in found["embedder"]["documents"]]
    np.testing.assert_allclose(vectors, document_vectors, atol=ANY_BATCH)
    component = MirrorTextEmbedder(str(model), model_kwargs={"variant": "fp32"})
    assert MirrorTextEmbedder.from_dict(component.to_dict()).to_dict() == component.to_dict()


def test_beside_the_event_loop(model, documents, query, document_vectors, query_vector, beside):
    found = beside(MirrorTextEmbedder(str(model)).run_async(query))["embedding"]
    np.testing.assert_allclose(found, query_vector, atol=ANY_BATCH)
    texts = [Document(content=text) for text in documents]
    found = beside(MirrorDocumentEmbedder(str(model)).run_async(texts))["documents"]
    np.testing.assert_allclose([d.embedding for d in found], document_vectors, atol=ANY_BATCH)
    assert all(document.embedding is None for document in texts)  # copies


def test_meta_data_goes_before_the_content(model, encoder):
    embedder = MirrorDocumentEmbedder(
        str(model), meta_fields_to_embed=["title", "none", "absent"], embedding_separator=" | "
    )
    embedder.warm_up()
    document = Document(content="the town", meta={"title": "River", "none": None})
    (found,) = embedder.run([document])["documents"]
    np.testing.assert_allclose(
        found.embedding, encoder.encode_document("River | the town"), atol=ANY_BATCH
    )


def test_what_has_no_text_has_no_embedding(model, encoder):
    embedder = MirrorDocumentEmbedder(str(model))
    given = [Document(content=None), Document(content="the town"), Document(content=" ")]
    first, found, last = embedder.run(given)["documents"]
    assert (first.embedding, last.embedding) == (None, None)
    expected = encoder.encode_document("the town")
    np.testing.assert_allclose(found.embedding, expected, atol=ANY_BATCH)
    for documents in ("the town", [given[1], "the town"]):
        with pytest.raises(TypeError, match="got str"):
            embedder.run(documents)
    with pytest.raises(TypeError, match="expected str, got list"):
        MirrorTextEmbedder(str(model)).run(given)


@pytest.fixture
def given(documents):
    return [Document(content=text, score=0.0) for text in documents]


def test_a_pipeline_ranks_and_is_stored(cross_encoder, given, query, best):
    pipeline = Pipeline()
    pipeline.add_component("ranker", MirrorRanker(Reranker.load(cross_encoder), top_k=4))
    text = pipeline.dumps()
    again = Pipeline.loads(text, allowed_modules=["mirror_rt"])
    assert again.dumps() == text
    for each in (pipeline, again):
        found = each.run({"ranker": {"query": query, "documents": given}})["ranker"]["documents"]
        assert [(document.content, document.score) for document in found] == best[:4]
    assert all(document.score == 0.0 for document in given)  # copies


def test_what_a_ranker_keeps(cross_encoder, given, query, best, beside):
    ranker = MirrorRanker(str(cross_encoder))
    ranker.warm_up()
    found = ranker.run(query, given + given[:2], top_k=5)["documents"]  # two of them twice
    assert [(document.content, document.score) for document in found] == best[:5]
    found = beside(ranker.run_async(query, given))["documents"]
    assert [(document.content, document.score) for document in found] == best
    least = found[2].score
    few = MirrorRanker(str(cross_encoder), score_threshold=least).run(query, given)["documents"]
    assert [document.content for document in few] == [text for text, _ in best[:3]]
    assert ranker.run(query, [])["documents"] == []
    assert len(ranker.run(query, [given[0], Document(content=None)])["documents"]) == 1
    with pytest.raises(ConfigError, match="top_k"):
        ranker.run(query, given, top_k=0)


def test_a_ranker_puts_meta_data_before_the_content(cross_encoder, query):
    ranker = MirrorRanker(str(cross_encoder), meta_fields_to_embed=["title"])
    document = Document(content="the town", meta={"title": "River"})
    (found,) = ranker.run(query, [document])["documents"]
    (expected,) = Reranker.load(cross_encoder).predict([(query, "River\nthe town")])
    assert found.score == pytest.approx(expected, abs=SCORE_ERROR)
