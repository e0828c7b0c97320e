"""Reranker of a late-interaction model: the scores of MultiVectorEncoder, as those of pairs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from asgi_calls import Call, run
from late_models import save_library, save_pylate
from mirror_rt import InvalidTextError, MultiVectorEncoder, Reranker
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app

QUERIES = ["who runs?", "the old town", "a " * 40]
DOCUMENTS = ["The river runs, through the old town.", "word", "A doctor and a physician. " * 9, "!"]
FOLDERS = {
    "pylate": save_pylate,
    "attended": functools.partial(save_pylate, attend_to_expansion_tokens=True),
    "alone": functools.partial(save_pylate, do_query_expansion=False),
    "min": functools.partial(
        save_library, expansion={"strategy": "min", "attend": False, "length": 9}
    ),
}


@pytest.fixture(scope="module")
def folder_of(tiny_bert, tmp_path_factory):
    root = tmp_path_factory.mktemp("late")
    return functools.cache(lambda name: FOLDERS[name](tiny_bert, root / name))


@pytest.mark.parametrize("name", FOLDERS)
def test_scores_are_those_of_the_encoder(folder_of, name):
    folder = folder_of(name)
    pairs = [(query, document) for query in QUERIES for document in DOCUMENTS]
    with MultiVectorEncoder.load(folder) as encoder, Reranker.load(folder) as reranker:
        vectors = encoder.encode_query(QUERIES), encoder.encode_document(DOCUMENTS)
        expected = encoder.similarity(*vectors)
        np.testing.assert_array_equal(reranker.predict(pairs), expected.ravel())
        np.testing.assert_array_equal(reranker.predict(pairs[3:4]), expected[0, 3:])
        ranking = encoder.rank(QUERIES[0], DOCUMENTS, return_documents=True)
        assert reranker.rank(QUERIES[0], DOCUMENTS, return_documents=True) == ranking


def test_what_is_no_pair_is_refused(folder_of):
    with Reranker.load(folder_of("pylate")) as reranker:
        for pair in (("a", None), ("a", ""), ("", "a"), "ab", ("a",)):
            with pytest.raises(InvalidTextError, match="item 1"):
                reranker.predict([("a", "b"), pair])
        found = reranker.predict([("a", "b"), ("a", "")], errors="nan")
        assert np.isnan(found).tolist() == [False, True]
        with pytest.raises(InvalidTextError, match="longer than"):
            reranker.predict([("a", "road " * 40)], on_too_long="error")


def test_a_server_ranks_by_it(folder_of):
    folder = folder_of("pylate")
    app = create_app(folder, ServerConfig(load=LoadOptions(threads=1)))
    app.state.registry.wait_until_warm()

    async def ask():
        call = Call(app, "/rerank", {"query": QUERIES[0], "texts": DOCUMENTS})
        return await call.answer()

    try:
        status, answer = run(ask())
    finally:
        app.state.registry.close()
    assert status == 200
    with MultiVectorEncoder.load(folder) as encoder:
        ranking = encoder.rank(QUERIES[0], DOCUMENTS)
    assert [(one["index"], one["score"]) for one in answer] == [
        (one["corpus_id"], pytest.approx(one["score"], abs=1e-5)) for one in ranking
    ]
