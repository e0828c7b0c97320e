"""LangChain: its own vector store, a compressor of documents, pickle."""

import pickle

import numpy as np
import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from mirror_rt import BundleError, ConfigError, InvalidTextError, Reranker
from mirror_rt.adapters.langchain import MirrorEmbeddings, MirrorReranker
from rounding import ANY_BATCH


@pytest.fixture
def embeddings(model):
    return MirrorEmbeddings(str(model))


def test_a_store_is_searched(embeddings, documents, query, ranked, beside):
    store = InMemoryVectorStore.from_texts(documents, embeddings)
    assert [found.page_content for found in store.similarity_search(query, k=3)] == ranked[:3]
    found = beside(store.as_retriever(search_kwargs={"k": 2}).ainvoke(query))
    assert [document.page_content for document in found] == ranked[:2]


def test_the_interface(embeddings, documents, query, document_vectors, query_vector, beside):
    assert isinstance(embeddings, Embeddings)
    for found in (embeddings.embed_documents(documents),
                  beside(embeddings.aembed_documents(documents))):  # fmt: skip
        assert isinstance(found[0][0], float)
        np.testing.assert_allclose(found, document_vectors, atol=ANY_BATCH)
    for found in (embeddings.embed_query(query), beside(embeddings.aembed_query(query))):
        assert isinstance(found[0], float)
        np.testing.assert_allclose(found, query_vector, atol=ANY_BATCH)
    assert embeddings.embed_documents([]) == []


def test_pickled_by_name(embeddings, query):
    stored = pickle.dumps(embeddings)
    assert len(stored) < 1000
    assert pickle.loads(stored).embed_query(query) == embeddings.embed_query(query)


def test_options_and_an_encoder(encoder, model, query):
    short = MirrorEmbeddings(encoder, encode_kwargs={"truncate_dim": 8})
    assert len(short.embed_query(query)) == 8
    named = MirrorEmbeddings(model, model_kwargs={"variant": "fp32", "threads": 1})
    assert len(named.embed_query(query)) == 32


def test_documents_are_ranked_and_the_best_kept(cross_encoder, documents, query, best, beside):
    given = [Document(page_content=text, metadata={"n": i}) for i, text in enumerate(documents)]
    reranker = MirrorReranker(str(cross_encoder), top_n=2)
    assert isinstance(reranker, BaseDocumentCompressor)
    again = pickle.loads(pickle.dumps(reranker))
    for found in (reranker.compress_documents(given, query),
                  again.compress_documents(given, query),
                  beside(reranker.acompress_documents(given, query))):  # fmt: skip
        assert [(d.page_content, d.metadata["relevance_score"]) for d in found] == best[:2]
        assert [documents[d.metadata["n"]] for d in found] == [d.page_content for d in found]
    assert all("relevance_score" not in document.metadata for document in given)  # copies
    every = MirrorReranker(
        Reranker.load(cross_encoder), top_n=None, predict_kwargs={"batch_size": 1}
    )
    assert [d.page_content for d in every.compress_documents(given, query)] == [t for t, _ in best]
    assert every.compress_documents([], query) == []
    with pytest.raises(InvalidTextError, match="item 1"):
        reranker.compress_documents([*given[:1], Document(page_content="")], query)


def test_a_ranker_that_cannot_be_loaded_is_an_error_at_once(model, cross_encoder):
    with pytest.raises(BundleError, match=r"mirror_rt\.Encoder\.load takes it"):
        MirrorReranker(model)
    with pytest.raises(ConfigError, match="predict_kwargs takes no argument 'on'"):
        MirrorReranker(cross_encoder, predict_kwargs={"on": 1})
    with pytest.raises(ConfigError, match="path or hub name of a bundle, or a loaded Reranker"):
        MirrorReranker(3)
