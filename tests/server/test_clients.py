"""Clients that others publish, against the server in a process of its own."""

import asyncio
import importlib

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI

from paths import ROOT
from rounding import ANY_BATCH
from tiny_models import SENTENCES

OPENAI_MODEL = "text-embedding-3-small"


@pytest.fixture(scope="module")
def address(keyed_server, key):
    url = f"http://127.0.0.1:{keyed_server.port}/v1"
    return {"base_url": url, "api_key": key, "max_retries": 0}


@pytest.fixture
def openai(address):
    with OpenAI(**address) as client:
        yield client


def vectors(answer):
    return np.array([row.embedding for row in answer.data], dtype=np.float32)


def test_openai(openai, encoder):
    """Which asks for base64 unless it is told otherwise."""
    expected = encoder.encode(SENTENCES)
    count = sum(map(len, encoder.tokenize(SENTENCES)))
    for options in ({}, {"encoding_format": "float"}, {"user": "me"}):
        answer = openai.embeddings.create(model="tiny", input=SENTENCES, **options)
        np.testing.assert_allclose(vectors(answer), expected, atol=ANY_BATCH)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)
        assert [row.index for row in answer.data] == list(range(len(SENTENCES)))
    ids = encoder.tokenize(SENTENCES[:2])
    answer = openai.embeddings.create(model="tiny", input=ids, dimensions=8)
    np.testing.assert_allclose(
        vectors(answer), encoder.encode(SENTENCES[:2], truncate_dim=8), atol=ANY_BATCH
    )
    assert [model.id for model in openai.models.list()] == ["tiny"]
    assert openai.models.retrieve("tiny").owned_by == "mirror_rt"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_cohere(address, encoder, monkeypatch):
    """Both versions; the first one sends 96 texts at a time, and joins the answers."""
    monkeypatch.syspath_prepend(str(ROOT / "build/cohere"))
    cohere = importlib.import_module("cohere")
    given = {"api_key": address["api_key"], "base_url": address["base_url"].removesuffix("/v1")}
    expected = encoder.encode(SENTENCES)
    with httpx.Client() as http:
        second, first = (
            kind(**given, httpx_client=http) for kind in (cohere.ClientV2, cohere.Client)
        )
        asked = {"model": "tiny", "input_type": "search_document", "embedding_types": ["float"]}
        found = second.embed(texts=SENTENCES, **asked).embeddings.float_
        np.testing.assert_allclose(found, expected, atol=ANY_BATCH)
        with pytest.raises(cohere.UnprocessableEntityError, match="embedding_types"):
            second.embed(texts=SENTENCES, **asked | {"embedding_types": ["int8"]})
        many = SENTENCES * (100 // len(SENTENCES) + 1)
        found = first.embed(texts=many, model="tiny", input_type="search_query").embeddings
        np.testing.assert_allclose(found[-len(SENTENCES) :], expected, atol=ANY_BATCH)


def test_openai_asynchronous(address, encoder):
    async def main():
        async with AsyncOpenAI(**address) as client:
            answers = await asyncio.gather(
                *(client.embeddings.create(model="tiny", input=text) for text in SENTENCES)
            )
        return np.concatenate([vectors(answer) for answer in answers])

    np.testing.assert_allclose(asyncio.run(main()), encoder.encode(SENTENCES), atol=ANY_BATCH)


def test_openai_knows_what_is_wrong(openai, address):
    with pytest.raises(BadRequestError) as empty:
        openai.embeddings.create(model="tiny", input="")
    assert (empty.value.code, empty.value.param) == ("empty", "input")
    with pytest.raises(NotFoundError, match="no such model: this server has tiny"):
        openai.embeddings.create(model=OPENAI_MODEL, input="a")
    stranger = OpenAI(**address | {"api_key": "sk-another"})
    with stranger, pytest.raises(AuthenticationError, match="an API key is needed"):
        stranger.embeddings.create(model="tiny", input="a")


@pytest.mark.full
def test_langchain(address, encoder):
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(model="tiny", check_embedding_ctx_length=False, **address)
    expected = encoder.encode(SENTENCES)
    np.testing.assert_allclose(embeddings.embed_documents(SENTENCES), expected, atol=ANY_BATCH)
    np.testing.assert_allclose(embeddings.embed_query(SENTENCES[0]), expected[0], atol=ANY_BATCH)

    async def main():
        async with httpx.AsyncClient() as connections:
            client = OpenAIEmbeddings(
                model="tiny", check_embedding_ctx_length=False, http_async_client=connections,
                **address,
            )  # fmt: skip
            return await client.aembed_documents(SENTENCES)

    np.testing.assert_allclose(asyncio.run(main()), expected, atol=ANY_BATCH)
    short = OpenAIEmbeddings(
        model="tiny", check_embedding_ctx_length=False, dimensions=8, **address
    )
    assert len(short.embed_query("a")) == 8


@pytest.mark.full
def test_langchain_by_default_sends_the_tokens_of_another_model(address, encoder, monkeypatch):
    """As docs/guides/serving.md warns: unknown ids are refused, known ones mean other words."""
    import tiktoken
    from langchain_openai import OpenAIEmbeddings

    def encoding_of(first):
        """An encoding of a token a byte, with ids from `first`; the real ones are on a hub."""
        ranks = {bytes([i]): first + i for i in range(256)}
        return tiktoken.Encoding("bytes", pat_str=r".", mergeable_ranks=ranks, special_tokens={})

    embeddings = OpenAIEmbeddings(model="tiny", **address)
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: encoding_of(0))
    found = embeddings.embed_query("the river")
    assert np.abs(found - encoder.encode("the river")).max() > 0.01
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: encoding_of(100_000))
    with pytest.raises(Exception, match="not all in 0"):
        embeddings.embed_query("the river")
