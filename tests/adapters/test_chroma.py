"""Chroma: a collection on disk that finds its model again."""

import numpy as np
import pytest

pytest.importorskip("chromadb")

import chromadb
from chromadb.utils.embedding_functions import config_to_embedding_function

from mirror_rt import Encoder
from mirror_rt.adapters.chroma import MirrorEmbeddingFunction
from rounding import ANY_BATCH


@pytest.fixture
def client(tmp_path):
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    return lambda: chromadb.PersistentClient(str(tmp_path / "chroma"), settings)


def test_a_collection_is_searched_and_opened_again(client, model, documents, query, ranked):
    ids = [str(i) for i in range(len(documents))]
    made = client().create_collection("texts", embedding_function=MirrorEmbeddingFunction(model))
    made.add(ids=ids, documents=documents)
    assert made.query(query_texts=[query], n_results=3)["documents"] == [ranked[:3]]
    chromadb.api.client.SharedSystemClient.clear_system_cache()
    opened = client().get_collection("texts")  # with the function that it has stored
    assert opened.query(query_texts=[query], n_results=3)["documents"] == [ranked[:3]]
    assert opened.configuration["hnsw"]["space"] == "cosine"


def test_the_interface(model, documents, query, document_vectors, query_vector):
    function = MirrorEmbeddingFunction(model)
    np.testing.assert_allclose(function(documents), document_vectors, atol=ANY_BATCH)
    np.testing.assert_allclose(function.embed_query([query]), [query_vector], atol=ANY_BATCH)
    assert not function.is_legacy()


@pytest.mark.parametrize("made_of", ["a name", "an encoder"])
def test_stored_by_name(made_of, model, query):
    given = model if made_of == "a name" else Encoder.load(model, threads=1)
    function = MirrorEmbeddingFunction(given, encode_kwargs={"truncate_dim": 8})
    again = config_to_embedding_function({"name": function.name(), "config": function.get_config()})
    assert isinstance(again, MirrorEmbeddingFunction)
    (found,), (expected,) = again.embed_query([query]), function.embed_query([query])
    assert found.shape == (8,)
    np.testing.assert_array_equal(found, expected)
