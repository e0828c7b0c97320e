"""Clients of rerankers that others publish, against the server in a process of its own.

tests/run.sh installs Cohere's client and LangChain's into build/cohere, away from all others.
"""

import importlib

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient, constants

from mirror_rt import Reranker
from paths import ROOT
from rounding import HALF_UNIT, SCORE_ERROR, of_statistics
from server_process import running

KEY = "sk-of-this-test"
QUERY = "the river"
TEXTS = ["the water flows", "a happy dog", "a small boat on the river"]
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def ranking(tiny_reranker):
    """The places of the texts, the best first, and their scores."""
    with Reranker.load(tiny_reranker("bert"), threads=1) as reranker:
        scores = reranker.predict([(QUERY, text) for text in TEXTS], activation="sigmoid")
    order = np.argsort(-scores, kind="stable")
    return order.tolist(), scores[order]


@pytest.fixture(scope="module")
def server(tiny_reranker):
    names = ("--model-name", "ranks", "--model-alias", "rerank-v3.5")
    with running(tiny_reranker("bert"), *names, MIRROR_RT_SERVE_API_KEYS=KEY) as server:
        yield server


@pytest.fixture
def url(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def http():
    """What Cohere's clients send with: they leave the one of their own open."""
    with httpx.Client() as client:
        yield client


@pytest.fixture
def cohere(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "build/cohere"))
    return importlib.import_module("cohere")


def same(results, ranking, top_n=3):
    assert [one.index for one in results] == ranking[0][:top_n]
    np.testing.assert_allclose(
        [one.relevance_score for one in results], ranking[1][:top_n], atol=SCORE_ERROR
    )


def test_cohere(cohere, url, ranking, http):
    client = cohere.ClientV2(api_key=KEY, base_url=url, httpx_client=http)
    answer = client.rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS)
    same(answer.results, ranking)
    assert answer.meta.billed_units.search_units == 1
    assert answer.id
    limited = client.rerank(model="ranks", query=QUERY, documents=TEXTS, top_n=1,
                            max_tokens_per_doc=100)  # fmt: skip
    same(limited.results, ranking, 1)
    with pytest.raises(cohere.NotFoundError, match="no such model"):
        client.rerank(model="other", query=QUERY, documents=TEXTS)
    with pytest.raises(cohere.UnprocessableEntityError, match="top_n"):
        client.rerank(model="ranks", query=QUERY, documents=TEXTS, top_n=0)
    with pytest.raises(cohere.UnauthorizedError):
        cohere.ClientV2(api_key="wrong", base_url=url, httpx_client=http).rerank(
            model="ranks", query=QUERY, documents=TEXTS
        )


def test_cohere_of_the_first_version(cohere, url, ranking, http):
    client = cohere.Client(api_key=KEY, base_url=url, httpx_client=http)
    documents = [{"text": text} for text in TEXTS]
    answer = client.rerank(model="ranks", query=QUERY, documents=documents, return_documents=True)
    same(answer.results, ranking)
    assert [one.document.text for one in answer.results] == [TEXTS[i] for i in ranking[0]]


def test_langchain_with_jina(cohere, url, ranking, monkeypatch):
    from langchain_core.documents import Document

    module = importlib.import_module("langchain_community.document_compressors.jina_rerank")
    monkeypatch.setattr(module, "JINA_API_URL", f"{url}/v1/rerank")
    compressor = module.JinaRerank(jina_api_key=KEY, model="ranks", top_n=2)
    found = compressor.compress_documents([Document(text) for text in TEXTS], QUERY)
    assert [one.page_content for one in found] == [TEXTS[i] for i in ranking[0][:2]]
    compressor.model = "other"
    with pytest.raises(RuntimeError, match="no such model"):
        compressor.compress_documents([Document(text) for text in TEXTS], QUERY)


def test_hugging_face(url, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # this is no hub
    client = InferenceClient(url, token=KEY)
    (label,) = client.text_classification(QUERY, top_k=1)
    assert 0 < label.score < 1
    (raw,) = client.text_classification(QUERY, function_to_apply="none")
    assert label.score == pytest.approx(
        1 / (1 + np.exp(-raw.score)), abs=of_statistics(1, HALF_UNIT)
    )
