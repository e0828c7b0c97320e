"""Requests as the clients of other servers write them: each gets what the plain request gets.

They were read off the clients' own code, in the version that stands beside them.
"""

import base64
import json

import numpy as np
import pytest

from asgi_calls import Call, run
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app
from mirror_rt.server.http.openapi import openapi_document
from rounding import ANY_BATCH, SCORE_ERROR

QUERY, TEXTS = "the river", ["the water flows", "a happy dog", "a small boat on the river"]
EMBED, RERANK = "/v1/embeddings", "/v1/rerank"
OF_DOCUMENTS = {"model": "ranks", "query": QUERY, "documents": TEXTS}
OF_TEXTS = {"query": QUERY, "texts": TEXTS}
VECTORS = [
    ("voyageai 0.5.0", EMBED, {"truncation": True, "encoding_format": "base64", "input_type": None,
                               "output_dtype": None, "output_dimension": None}, {}),
    ("voyageai 0.5.0", EMBED, {"truncation": True, "input_type": "document",
                               "output_dtype": "float", "output_dimension": 8}, {"dimensions": 8}),
    ("infinity_client 0.0.78", "/embeddings", {"dimensions": 0, "modality": "text"}, {}),
    ("infinity_client 0.0.78", "/v1/embeddings", {"dimensions": 8}, {"dimensions": 8}),
    ("LiteLLM 1.110.2 infinity/", "/embeddings", {"output_dimension": 8, "encoding_format":
                                                  "float"}, {"dimensions": 8}),
    ("mixedbread 0.54.0", EMBED, {"normalized": True, "encoding_format": "float"}, {}),
    ("mixedbread 0.54.0", EMBED, {"normalized": False}, {"normalize": False}),
    ("llama-index-embeddings-jinaai 0.7.0", EMBED, {"encoding_type": "float",
                                                    "late_chunking": False}, {}),
    ("Jina's REST API", EMBED, {"embedding_type": "float", "normalized": True, "truncate": True,
                                "late_chunking": False, "task": "retrieval.passage"}, {}),
    ("langchain-nvidia-ai-endpoints 1.5.0", EMBED, {"encoding_format": "float", "truncate": "NONE",
                                                    "input_type": "passage"}, {}),
    ("langchain-nvidia-ai-endpoints 1.5.0", EMBED, {"input_type": "query", "dimensions": 8},
     {"dimensions": 8}),
    ("RAGFlow with OpenAI", EMBED, {"encoding_format": "float", "drop_params": True}, {}),
    ("vLLM's REST API", EMBED, {"encoding_format": "float", "truncate_prompt_tokens": -1,
                                "add_special_tokens": True, "priority": 0}, {}),
]  # fmt: skip
RANKS = [
    ("LiteLLM 1.110.2 cohere/", "/v2/rerank", OF_DOCUMENTS | {"top_n": 2,
                                                              "return_documents": True}),
    ("LiteLLM 1.110.2 huggingface/", "/rerank", OF_TEXTS | {"raw_scores": False, "top_n": 2,
        "truncation_direction": "Right", "return_text": True}),
    ("LiteLLM 1.110.2 hosted_vllm/", "/rerank", OF_DOCUMENTS | {"return_documents": True}),
    ("LiteLLM 1.110.2 infinity/", "/rerank", OF_DOCUMENTS | {"return_documents": True, "top_n": 2}),
    ("LiteLLM 1.110.2 jina_ai/", RERANK, OF_DOCUMENTS | {"top_n": 3, "return_documents": True}),
    ("LiteLLM 1.110.2 voyage/", RERANK, OF_DOCUMENTS | {"top_k": 2, "return_documents": True}),
    ("voyageai 0.5.0", RERANK, OF_DOCUMENTS | {"top_k": None, "truncation": True}),
    ("infinity_client 0.0.78", "/rerank", OF_DOCUMENTS | {"return_documents": True, "raw_scores":
                                                          False}),
    ("mixedbread 0.54.0", "/v1/reranking", {"model": "ranks", "query": QUERY, "input": TEXTS,
        "top_k": 2, "return_input": True, "rewrite_query": False}),
    ("xinference-client 4.1.0", RERANK, OF_DOCUMENTS | {"top_n": 2, "max_chunks_per_doc": None,
        "return_documents": None, "return_len": None, "kwargs": "{}"}),
    ("rerankers 0.10.0 jina", RERANK, OF_DOCUMENTS | {"top_n": 3, "return_documents": True}),
    ("rerankers 0.10.0 voyage", RERANK, OF_DOCUMENTS | {"top_k": 3, "return_documents": True}),
    ("rerankers 0.10.0 mixedbread.ai", "/v1/reranking", {"model": "ranks", "query": QUERY,
        "input": TEXTS, "top_k": 3, "return_input": True}),
    ("rerankers 0.10.0 text-embeddings-inference", "/rerank", OF_TEXTS | {"model": "ranks",
        "top_n": 3, "return_text": True}),
    ("Elasticsearch hugging_face", "/rerank", OF_TEXTS | {"return_text": True, "top_n": 2}),
    ("RAGFlow with Xinference", RERANK, OF_DOCUMENTS | {"return_documents": "true",
                                                        "return_len": "true"}),
    ("Open WebUI, RAGFlow with GPUStack", RERANK, OF_DOCUMENTS | {"top_n": 3}),
    ("continue.dev huggingface-tei", "/rerank", OF_TEXTS | {"return_text": False, "truncate": True,
        "raw_scores": False, "truncation_direction": "Right"}),
    ("Milvus with vLLM", "/rerank", {"query": QUERY, "documents": TEXTS}),
    ("Milvus with TEI", "/rerank", OF_TEXTS | {"truncate": True}),
    ("Jina's REST API", RERANK, OF_DOCUMENTS | {"return_embeddings": False}),
    ("vLLM's REST API", "/v2/rerank", OF_DOCUMENTS | {"truncate_prompt_tokens": -1,
                                                      "use_activation": True}),
    ("vLLM's REST API", "/score", {"model": "ranks", "text_1": QUERY, "text_2": TEXTS}),
    ("vLLM's REST API", "/v1/score", {"queries": [QUERY] * 3, "documents": TEXTS}),
]  # fmt: skip
REFUSED = [
    (EMBED, {"input": "a", "output_dtype": "int8"}, "output_dtype"),
    (EMBED, {"input": "a", "embedding_type": "ubinary"}, "embedding_type"),
    (EMBED, {"input": "a", "encoding_format": ["float", "int8"]}, "encoding_format"),
    ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"),
    ("/v2/embed", {"texts": ["a"], "max_tokens": 5}, "max_tokens"),
    ("/v1/embed", {"texts": ["a"], "input_type": "clustering"}, "input_type"),
    ("/v2/embed", {"texts": ["a " * 500], "truncate": "NONE"}, "item 0"),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": "a " * 500}]}, "item 0"),
    (EMBED, {"input": "a", "late_chunking": True}, "late_chunking"),
    (EMBED, {"input": "a", "task": "classification"}, "task"),
    (EMBED, {"input": "a", "modality": "image"}, "modality"),
    (EMBED, {"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    (EMBED, {"input": "a " * 500, "truncation": False}, "item 0"),
    ("/embed", {"inputs": "a", "late_chunking": True}, "late_chunking"),
    (RERANK, OF_DOCUMENTS | {"kwargs": '{"normalize": false}', "normalize": False}, "normalize"),
    (RERANK, OF_DOCUMENTS | {"rank_fields": ["title"]}, "rank_fields"),
    (RERANK, OF_DOCUMENTS | {"instruction": "Find birds."}, "instruction"),
    (RERANK, OF_DOCUMENTS | {"top_k": 2, "top_n": 1}, "top_k"),
    ("/v1/reranking", {"query": "a", "input": ["b"], "rewrite_query": True}, "rewrite_query"),
    ("/score", {"text_1": "a", "text_2": "b", "use_activation": False}, "use_activation"),
]


@pytest.fixture(scope="module")
def app(bundle, tiny_reranker):
    folder = tiny_reranker("bert")
    app = create_app(
        (bundle, folder),
        ServerConfig(model_aliases=(f"vectors={bundle}", f"ranks={folder}", "*"),
                     load=LoadOptions(threads=1)),
    )  # fmt: skip
    app.state.registry.wait_until_warm()
    yield app
    app.state.registry.close()


def ask(app, path, body):
    async def main():
        return await Call(app, path, body).answer()

    return run(main())


def vectors(answer):
    found = [one["embedding"] for one in answer["data"]]
    if isinstance(found[0], str):
        found = [np.frombuffer(base64.b64decode(one), "<f4") for one in found]
    return np.array(found, np.float32)


@pytest.mark.parametrize(("client", "path", "fields", "plain"), VECTORS)
def test_vectors(app, client, path, fields, plain):
    body = {"model": "vectors", "input": TEXTS}
    status, answer = ask(app, path, body | fields)
    assert status == 200, answer
    expected = ask(app, EMBED, body | plain)[1]
    np.testing.assert_allclose(vectors(answer), vectors(expected), atol=ANY_BATCH)


def test_vectors_in_coheres_form(app):
    """Its client, version 7.3.1, sends these; the texts come back, and long ones are cut."""
    expected = vectors(ask(app, EMBED, {"input": TEXTS})[1])
    body = {"model": "vectors", "texts": TEXTS, "input_type": "search_document"}
    for path, more in (
        ("/v2/embed", {"embedding_types": ["float"], "truncate": "END", "max_tokens": 128_000}),
        ("/v1/embed", {"embedding_types": ["float"]}),
        ("/v1/embed", {}),
    ):
        status, answer = ask(app, path, body | more)
        assert status == 200, answer
        found = answer["embeddings"]["float"] if more else answer["embeddings"]
        np.testing.assert_allclose(found, expected, atol=ANY_BATCH)
        form = "by_type" if more else "floats"
        assert (answer["response_type"], answer["texts"]) == (f"embeddings_{form}", TEXTS)
        assert answer["meta"]["billed_units"]["input_tokens"] > 0
    body = {"texts": TEXTS * 30 + ["river " * 60_000], "output_dimension": 8}
    found = np.array(ask(app, "/v2/embed", body)[1]["embeddings"]["float"])
    assert found.shape == (91, 8)


def test_vectors_in_several_encodings(app):
    """A client of Mixedbread may send a list; of one it gets vectors, and of two an object."""
    expected = vectors(ask(app, EMBED, {"input": TEXTS})[1])
    for kinds in (["float"], ["base64"]):
        answer = ask(app, EMBED, {"input": TEXTS, "encoding_format": kinds})[1]
        np.testing.assert_allclose(vectors(answer), expected, atol=ANY_BATCH)
    answer = ask(app, EMBED, {"input": TEXTS, "encoding_format": ["float", "base64"]})[1]
    for kind in ("float", "base64"):
        one = {"data": [{"embedding": row["embedding"][kind]} for row in answer["data"]]}
        np.testing.assert_allclose(vectors(one), expected, atol=ANY_BATCH)


def test_ranks_in_the_form_of_nim(app):
    """langchain-nvidia-ai-endpoints and LlamaIndex's reranker send these, version 1.5.0."""
    plain = ask(app, "/rerank", OF_TEXTS | {"raw_scores": True})[1]
    body = {"model": "ranks", "query": {"text": QUERY}, "passages": [{"text": t} for t in TEXTS]}
    for more in ({}, {"truncate": "END"}, {"truncate": "NONE"}):
        status, answer = ask(app, "/v1/ranking", body | more)
        assert status == 200, answer
        found = [(one["index"], one["logit"]) for one in answer["rankings"]]
        assert [i for i, _ in found] == [one["index"] for one in plain]
        expected = [one["score"] for one in plain]
        np.testing.assert_allclose([s for _, s in found], expected, atol=4 * SCORE_ERROR)
        assert answer["usage"]["total_tokens"] > 0
    large = {"text": "the river " * 9000}  # decoded in parts
    status, answer = ask(app, "/v1/ranking", body | {"passages": [large] * 3, "truncate": "END"})
    assert (status, sorted(one["index"] for one in answer["rankings"])) == (200, [0, 1, 2])


@pytest.mark.parametrize(("client", "path", "body"), RANKS)
def test_ranks(app, client, path, body):
    """Places and scores are those of the plain request; documents and names are the client's."""
    expected = {one["index"]: one["score"] for one in ask(app, "/rerank", OF_TEXTS)[1]}
    status, answer = ask(app, path, body)
    assert status == 200, answer
    of_voyage = "top_k" in body or "truncation" in body
    if of_tei := "texts" in body:
        found = answer
    else:
        found = answer["data" if of_voyage or "score" in path else "results"]
        assert answer["object"] == ("rerank" if "raw_scores" in body else "list")
        assert answer["usage"]["total_tokens"] > 0
    name = "score" if of_tei or path == "/v1/reranking" or "score" in path else "relevance_score"
    order = list(expected) if "score" not in path else [0, 1, 2]
    most = body.get("top_n") or body.get("top_k") or 3
    assert [one["index"] for one in found] == order[:most]
    np.testing.assert_allclose(
        [one[name] for one in found], [expected[i] for i in order[:most]], atol=SCORE_ERROR
    )
    texts = [TEXTS[i] for i in order[:most]]
    if body.get("return_text") or body.get("return_input"):
        assert [one["text" if of_tei else "input"] for one in found] == texts
    elif body.get("return_documents"):
        plain = of_voyage or "raw_scores" in body
        assert [one["document"] for one in found] == [t if plain else {"text": t} for t in texts]


@pytest.mark.parametrize(("path", "body", "named"), REFUSED)
def test_what_would_change_the_result_is_refused_by_name(app, path, body, named):
    status, answer = ask(app, path, body)
    assert status in (400, 422)
    assert named in (answer["error"] if path == "/embed" else answer["detail"])


def test_classes(app):
    plain = ask(app, "/predict", {"inputs": [[text] for text in TEXTS]})[1]
    status, answer = ask(app, "/classify", {"input": TEXTS, "raw_scores": False, "model": "ranks"})
    assert (status, answer["object"], answer["data"]) == (200, "classify", plain)
    status, answer = ask(app, "/classify", {"input": TEXTS, "model": "ranks"})
    assert [one["probs"] for one in answer["data"]] == [[one["score"]] for (one,) in plain]
    assert [one["label"] for one in answer["data"]] == [one["label"] for (one,) in plain]


def test_each_protocol_cuts_long_texts_as_its_own_server_does(app):
    long = "river " * 600
    bodies = {"/embed": {"inputs": long}, "/rerank": {"query": "a", "texts": [long]},
              "/predict": {"inputs": [long]}, "/embed_all": {"inputs": long},
              "/similarity": {"inputs": {"source_sentence": long, "sentences": ["a"]}}}  # fmt: skip
    for path, body in bodies.items():
        assert ask(app, path, body)[0] == 200
        if path != "/similarity":
            assert ask(app, path, body | {"truncate": False})[0] == 413
    for path, body in ((EMBED, {"input": long}), ("/score", {"text_1": "a", "text_2": long})):
        status, answer = ask(app, path, body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert ask(app, "/info", None)[1]["auto_truncate"] is True


def test_any_name_is_the_default_model_where_the_alias_is_a_star(app):
    for path, body in (("/embed", {"inputs": QUERY}), ("/rerank", OF_TEXTS)):
        status, answer = ask(app, path, body | {"model": "text-embedding-3-small"})
        assert (status, answer) == (200, ask(app, path, body)[1])


def test_the_document_says_that_neither_texts_nor_lists_are_empty():
    schemas = openapi_document()["components"]["schemas"]
    for name, field in (("EmbeddingsRequest", "input"), ("EmbedRequest", "inputs"),
                        ("TextsRequest", "texts"), ("DocumentsRequest", "documents")):  # fmt: skip
        properties = schemas[name]["properties"]
        said = json.dumps([properties[field], properties.get("query")])
        assert '"minItems": 1' in said, said
        assert '"minLength": 1' in said, said


def test_other_paths_and_an_empty_text(app):
    assert ask(app, "/models", None) == ask(app, "/v1/models", None)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [QUERY]}
    infer, versions = "/v2/models/vectors/infer", "/v2/models/vectors/versions"
    body = {"inputs": [tensor]}  # of tritonclient with model_version="1"
    assert ask(app, f"{versions}/1/infer", body) == ask(app, infer, body)
    assert ask(app, f"{versions}/1/ready", None)[0] == ask(app, f"{versions}/1", None)[0] == 200
    assert ask(app, f"{versions}/2/infer", body)[0] == 404
    status, answer = ask(app, "/tokenize", {"inputs": ["", "a"]})
    assert status == 200, answer
    assert [one["special"] for one in answer[0]] == [True, True]
