"""Sparse encoders over HTTP, in the form of text-embeddings-inference."""

import shutil

import numpy as np
import pytest

from asgi_calls import Call, run
from mirror_rt import SparseEncoder
from mirror_rt.bundle.identity import digest_of
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app
from mirror_rt.server.models import service
from rounding import GATE

TEXTS = ["the water flows", "a happy dog", "the river " * 70]


@pytest.fixture(scope="module")
def app(bundle, tiny_sparse):
    folder = tiny_sparse("bert")
    aliases = (f"vectors={bundle}", f"words={folder}")
    config = ServerConfig(load=LoadOptions(threads=1), model_aliases=aliases)
    app = create_app([bundle, folder], config)
    app.state.registry.wait_until_warm()
    yield app
    app.state.registry.close()


def ask(app, path, body):
    async def main():
        call = Call(app, path, body)
        status, answer = await call.answer()
        return status, answer, call.headers

    return run(main())


def test_weights_of_words(app, tiny_sparse):
    status, answer, headers = ask(app, "/embed_sparse", {"inputs": TEXTS, "truncate": True})
    assert (status, len(answer)) == (200, 3)
    assert headers[b"x-truncated-items"] == b"1"
    with SparseEncoder.load(tiny_sparse("bert"), threads=1) as encoder:
        for found, row in zip(answer, encoder.encode(TEXTS), strict=True):
            assert [one["index"] for one in found] == row.indices.tolist()
            np.testing.assert_allclose([one["value"] for one in found], row.values, atol=GATE)
    assert ask(app, "/embed_sparse", {"inputs": TEXTS[1]})[1] == [answer[1]]
    assert ask(app, "/embed_sparse", {"inputs": TEXTS[1], "model": "words"})[0] == 200


def test_other_models_and_forms_are_refused(app):
    for path, model, said in (
        ("/embed_sparse", "vectors", "gives vectors"),
        ("/embed", "words", "ask /embed_sparse"),
        ("/rerank", "words", "ask /embed_sparse"),
    ):
        body = {"inputs": "a"} if path != "/rerank" else {"query": "a", "texts": ["b"]}
        status, answer, _ = ask(app, path, body | {"model": model})
        assert status == 422
        assert said in answer["error"]
    assert ask(app, "/embed_sparse", {"inputs": []})[0] == 400
    assert ask(app, "/embed_sparse", {"inputs": ["a", " "]})[0] == 400
    assert ask(app, "/embed_sparse", {"inputs": ["a"], "truncate": False})[0] == 200
    assert ask(app, "/embed_sparse", {"inputs": TEXTS, "truncate": False})[0] == 413


def test_as_many_texts_as_their_weights_have_room(app, monkeypatch):
    monkeypatch.setattr(service, "_MOST_NUMBERS", 2000)
    assert ask(app, "/embed_sparse", {"inputs": TEXTS[:2]})[0] == 200
    assert ask(app, "/embed_sparse", {"inputs": TEXTS})[0] == 413


def test_a_folder_with_a_table_for_queries_is_served(tiny_sparse, tmp_path):
    """Its identity has the weights of documents, and the table."""
    folder = shutil.copytree(tiny_sparse("bert", looks_up=True), tmp_path / "router")
    app = create_app([folder], ServerConfig(load=LoadOptions(threads=1)))
    app.state.registry.wait_until_warm()
    try:
        assert ask(app, "/embed_sparse", {"inputs": TEXTS[1]})[0] == 200
    finally:
        app.state.registry.close()
    before = digest_of(folder)
    for weights in (*folder.glob("*/model.safetensors"), folder / "router_config.json"):
        weights.write_bytes(weights.read_bytes() + b" ")
        assert digest_of(folder) != before
        before = digest_of(folder)
