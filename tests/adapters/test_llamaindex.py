"""LlamaIndex: an index and its retriever, an ingestion pipeline, a postprocessor, storing."""

import pickle

import numpy as np
import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import Document, NodeWithScore, TextNode

from mirror_rt import ConfigError, Encoder, Reranker
from mirror_rt.adapters.llamaindex import MirrorEmbedding, MirrorRerank
from rounding import ANY_BATCH


@pytest.fixture
def embedding(model):
    return MirrorEmbedding(str(model))


@pytest.fixture
def nodes(documents):
    return [TextNode(text=text) for text in documents]


def test_an_index_is_searched(embedding, nodes, query, ranked, beside):
    index = VectorStoreIndex(nodes, embed_model=embedding)
    retriever = index.as_retriever(similarity_top_k=3)
    assert [found.node.get_content() for found in retriever.retrieve(query)] == ranked[:3]
    found = beside(retriever.aretrieve(query))
    assert [node.get_content() for node in found] == ranked[:3]


def test_a_pipeline_embeds(embedding, documents, document_vectors, beside):
    pipeline = IngestionPipeline(transformations=[embedding], disable_cache=True)
    texts = [Document(text=text) for text in documents]
    for nodes in (pipeline.run(documents=texts), beside(pipeline.arun(documents=texts))):
        np.testing.assert_allclose([n.embedding for n in nodes], document_vectors, atol=ANY_BATCH)


def test_the_interface(embedding, documents, query, document_vectors, query_vector, beside):
    assert isinstance(embedding, BaseEmbedding)
    for found in (embedding.get_query_embedding(query),
                  beside(embedding.aget_query_embedding(query))):  # fmt: skip
        np.testing.assert_allclose(found, query_vector, atol=ANY_BATCH)
    for found in (embedding.get_text_embedding(documents[1]),
                  beside(embedding.aget_text_embedding(documents[1]))):  # fmt: skip
        np.testing.assert_allclose(found, document_vectors[1], atol=ANY_BATCH)
    batches = MirrorEmbedding(embedding.model_name, embed_batch_size=2)
    for found in (batches.get_text_embedding_batch(documents),
                  beside(batches.aget_text_embedding_batch(documents))):  # fmt: skip
        np.testing.assert_allclose(found, document_vectors, atol=ANY_BATCH)


@pytest.mark.parametrize("made_of", ["a name", "an encoder"])
def test_stored_by_name(made_of, model, query):
    given = str(model) if made_of == "a name" else Encoder.load(model, threads=1)
    embedding = MirrorEmbedding(given, encode_kwargs={"truncate_dim": 8})
    expected = embedding.get_query_embedding(query)
    assert len(expected) == 8
    again = [
        pickle.loads(pickle.dumps(embedding)),
        MirrorEmbedding.from_dict(embedding.to_dict()),
        MirrorEmbedding.from_json(embedding.to_json()),
    ]
    for other in again:
        assert other.get_query_embedding(query) == expected
        assert other.to_dict() == embedding.to_dict()


@pytest.mark.parametrize("made_of", ["a name", "a reranker"])
def test_nodes_are_ranked_and_the_best_kept(made_of, cross_encoder, nodes, query, best, beside):
    given = str(cross_encoder) if made_of == "a name" else Reranker.load(cross_encoder, threads=1)
    rerank = MirrorRerank(given, top_n=3, predict_kwargs={"batch_size": 2})
    assert isinstance(rerank, BaseNodePostprocessor)
    found = [NodeWithScore(node=node, score=0.0) for node in nodes]
    again = [
        rerank,
        pickle.loads(pickle.dumps(rerank)),
        MirrorRerank.from_dict(rerank.to_dict()),
        MirrorRerank.from_json(rerank.to_json()),
    ]
    for other in again:
        kept = other.postprocess_nodes(found, query_str=query)
        assert [(node.get_content(), node.score) for node in kept] == best[:3]
        assert other.to_dict() == rerank.to_dict()
    kept = beside(rerank.apostprocess_nodes(found, query_str=query))
    assert [(node.get_content(), node.score) for node in kept] == best[:3]
    assert all(node.score == 0.0 for node in found)  # copies
    assert rerank.postprocess_nodes([], query_str=query) == []
    with pytest.raises(ConfigError, match="query_bundle"):
        rerank.postprocess_nodes(found)


def test_an_index_is_searched_and_ranked(embedding, cross_encoder, nodes, query, best):
    index = VectorStoreIndex(nodes, embed_model=embedding)
    found = index.as_retriever(similarity_top_k=len(nodes)).retrieve(query)
    kept = MirrorRerank(str(cross_encoder)).postprocess_nodes(found, query_str=query)
    assert [node.get_content() for node in kept] == [text for text, _ in best[:2]]
