"""Haystack: pipelines that index and search, run in both ways, stored as YAML."""

import numpy as np
import pytest

pytest.importorskip("haystack")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore

from mirror_rt import Encoder, InvalidTextError
from mirror_rt.adapters.haystack import MirrorDocumentEmbedder, MirrorTextEmbedder


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
    np.testing.assert_allclose(vectors, document_vectors, atol=1e-6)
    component = MirrorTextEmbedder(str(model), model_kwargs={"variant": "fp32"})
    assert MirrorTextEmbedder.from_dict(component.to_dict()).to_dict() == component.to_dict()


def test_beside_the_event_loop(model, documents, query, document_vectors, query_vector, beside):
    found = beside(MirrorTextEmbedder(str(model)).run_async(query))["embedding"]
    np.testing.assert_allclose(found, query_vector, atol=1e-6)
    texts = [Document(content=text) for text in documents]
    found = beside(MirrorDocumentEmbedder(str(model)).run_async(texts))["documents"]
    np.testing.assert_allclose([d.embedding for d in found], document_vectors, atol=1e-6)
    assert all(document.embedding is None for document in texts)  # copies


def test_meta_data_goes_before_the_content(model, encoder):
    embedder = MirrorDocumentEmbedder(
        str(model), meta_fields_to_embed=["title", "none", "absent"], embedding_separator=" | "
    )
    embedder.warm_up()
    document = Document(content="the town", meta={"title": "River", "none": None})
    (found,) = embedder.run([document])["documents"]
    np.testing.assert_allclose(
        found.embedding, encoder.encode_document("River | the town"), atol=1e-6
    )


def test_what_cannot_be_embedded_is_named(model):
    with pytest.raises(InvalidTextError, match="item 1: the string is empty"):
        MirrorDocumentEmbedder(str(model)).run([Document(content="a"), Document(content=None)])
