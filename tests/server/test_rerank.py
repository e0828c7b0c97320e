"""Rerankers over HTTP: the forms of text-embeddings-inference, Jina and Cohere."""

import asyncio
import json
import threading

import numpy as np
import pytest

from asgi_calls import Call, run
from mirror_rt import Encoder, Reranker
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app
from rounding import ANY_BATCH, LOGIT_ERROR, SCORE_ERROR

QUERY = "the river"
TEXTS = ["the water flows", "a happy dog", "the river " * 70, "a small boat on the river"]
LOAD = LoadOptions(threads=1)


@pytest.fixture(scope="module")
def folder(tiny_reranker):
    return tiny_reranker("bert")


@pytest.fixture(scope="module")
def reranker(folder):
    with Reranker.load(folder, threads=1) as reranker:
        yield reranker


@pytest.fixture(scope="module")
def classifier(made_once, words):
    """The folder of a cross-encoder with three labels."""
    from mirror_export import ExportConfig, export_bundle
    from tiny_models import make_model

    def export(out):
        model = out.with_name("three-labels")
        make_model("bert", model, words, labels=3)
        export_bundle(ExportConfig(str(model), out))

    return made_once("classifiers/bert", export)


@pytest.fixture(scope="module")
def make():
    registries = []

    def make(*sources, **fields):
        fields = {"token_budget": 256, "load": LOAD} | fields
        app = create_app(sources, ServerConfig(**fields))
        registries.append(app.state.registry)
        app.state.registry.wait_until_warm()
        return app

    yield make
    for registry in registries:
        registry.close()


@pytest.fixture(scope="module")
def app(make, bundle, folder):
    aliases = (f"vectors={bundle}", f"ranks={folder}", "rerank-v3.5=ranks")
    return make(bundle, folder, model_aliases=aliases)


def ask(app, path, body, **headers):
    async def main():
        call = Call(app, path, body, headers=headers)
        status, answer = await call.answer()
        return status, answer, call.headers

    return run(main())


def expected(reranker, texts=TEXTS, activation="sigmoid"):
    """The places of texts, the best first, and their scores."""
    scores = reranker.predict([(QUERY, text) for text in texts], activation=activation)
    order = np.argsort(-scores, kind="stable")
    return order.tolist(), scores[order]


@pytest.mark.parametrize("raw", [False, True])
def test_rerank(raw, app, reranker):
    order, scores = expected(reranker, activation="identity" if raw else "sigmoid")
    body = {"query": QUERY, "texts": TEXTS, "truncate": True, "raw_scores": raw}
    status, answer, headers = ask(app, "/rerank", body)
    assert status == 200
    assert [set(one) for one in answer] == [{"index", "score"}] * 4
    assert [one["index"] for one in answer] == order
    np.testing.assert_allclose([one["score"] for one in answer], scores, atol=SCORE_ERROR)
    assert headers[b"x-truncated-items"] == b"1"
    status, answer, _ = ask(app, "/rerank", body | {"return_text": True, "model": "ranks"})
    assert [one["text"] for one in answer] == [TEXTS[i] for i in order]


def test_jina(app, reranker):
    order, scores = expected(reranker)
    documents = [TEXTS[0], {"text": TEXTS[1]}, {"text": TEXTS[2], "url": "x"}, TEXTS[3]]
    body = {"model": "ranks", "query": QUERY, "documents": documents}
    status, answer, _ = ask(app, "/v1/rerank", body, **{"X-Request-Id": "one"})
    assert status == 200
    assert [one["index"] for one in answer["results"]] == order
    np.testing.assert_allclose(
        [one["relevance_score"] for one in answer["results"]], scores, atol=SCORE_ERROR
    )
    assert [one["document"]["text"] for one in answer["results"]] == [TEXTS[i] for i in order]
    tokens = answer["usage"]["total_tokens"]
    assert tokens > 4
    assert (answer["model"], answer["object"], answer["id"]) == ("ranks", "list", "one")
    assert answer["meta"]["billed_units"] == {"search_units": 1}
    body |= {"top_n": 2, "return_documents": False}
    status, answer, _ = ask(app, "/v1/rerank", body)
    assert [set(one) for one in answer["results"]] == [{"index", "relevance_score"}] * 2
    assert [one["index"] for one in answer["results"]] == order[:2]


def test_beginnings_are_cut_for_truncation_direction(app, reranker):
    long = "the river in a town " * 60
    expected = reranker.predict([(QUERY, long)], on_too_long="truncate-left", activation="sigmoid")
    body = {"query": QUERY, "texts": [long], "truncate": True, "truncation_direction": "Left"}
    answer = ask(app, "/rerank", body | {"model": "ranks"})[1]
    assert answer[0]["score"] == pytest.approx(expected[0], abs=SCORE_ERROR)
    assert abs(expected - reranker.predict([(QUERY, long)], activation="sigmoid")).max() > 1e-4


def test_cohere(app, reranker):
    order, scores = expected(reranker)
    body = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS, "top_n": 3}
    status, answer, _ = ask(app, "/v2/rerank", body)
    assert status == 200
    assert [one["index"] for one in answer["results"]] == order[:3]
    np.testing.assert_allclose(
        [one["relevance_score"] for one in answer["results"]], scores[:3], atol=SCORE_ERROR
    )
    assert [set(one) for one in answer["results"]] == [{"index", "relevance_score"}] * 3
    assert answer["meta"]["api_version"] == {"version": "2"}
    pieces = reranker.pipeline.tokenizer.pieces
    cut = [text[: pieces(text, special_tokens=False)[1].stop] for text in TEXTS]
    order, scores = expected(reranker, cut)
    status, answer, _ = ask(app, "/v2/rerank", body | {"max_tokens_per_doc": 2, "top_n": None})
    got = {one["index"]: one["relevance_score"] for one in answer["results"]}
    np.testing.assert_allclose([got[i] for i in order], scores, atol=SCORE_ERROR)


def test_predict(make, classifier):
    app = make(classifier)
    with Reranker.load(classifier, threads=1) as reranker:
        pairs = [(QUERY, TEXTS[0]), (QUERY, TEXTS[1])]
        scores = reranker.predict(pairs, activation="softmax")
        logits = reranker.predict(pairs, activation="identity")
        labels = reranker.labels
    batch = [list(pair) for pair in pairs]
    status, answer, _ = ask(app, "/predict", {"inputs": batch})
    assert status == 200
    for found, row in zip(answer, scores, strict=True):
        order = np.argsort(-row, kind="stable")
        assert [one["label"] for one in found] == [labels[i] for i in order]
        np.testing.assert_allclose([one["score"] for one in found], row[order], atol=SCORE_ERROR)
    status, answer, _ = ask(app, "/predict", {"inputs": batch[0], "raw_scores": True})
    assert answer[0]["score"] == pytest.approx(logits[0].max(), abs=LOGIT_ERROR)
    status, answer, _ = ask(app, "/predict", {"inputs": QUERY})
    assert (status, len(answer), set(answer[0])) == (200, 3, {"label", "score"})
    mixed = [[QUERY], batch[0], [QUERY]]
    status, several, _ = ask(app, "/predict", {"inputs": mixed})
    assert [row[0]["label"] for row in several] == [answer[0]["label"], several[1][0]["label"],
                                                     answer[0]["label"]]  # fmt: skip
    assert several[0][0]["score"] == pytest.approx(answer[0]["score"], abs=SCORE_ERROR)
    assert several[1][0]["score"] == pytest.approx(scores[0].max(), abs=SCORE_ERROR)
    status, problem, _ = ask(app, "/rerank", {"query": QUERY, "texts": TEXTS})
    assert (status, "several scores" in problem["error"]) == (422, True)
    kind = ask(app, "/info", None)[1]["model_type"]
    assert list(kind["classifier"]["label2id"]) == list(labels)


def test_a_text_alone_is_that_of_the_peer(classifier, words):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from mirror_rt.tokens.pairs import Pair

    source = classifier.with_name("three-labels")
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForSequenceClassification.from_pretrained(source).eval()
    with torch.inference_mode():
        theirs = model(**tokenizer([QUERY], return_tensors="pt")).logits[0].numpy()
    with Reranker.load(classifier, threads=1) as reranker:
        ours = reranker.predict([Pair(QUERY, None)], activation="identity")[0]
    np.testing.assert_allclose(ours, theirs, atol=LOGIT_ERROR)


def test_a_request_of_the_wrong_kind(app, make, bundle, folder):
    wrong = [
        ("/embed", {"inputs": "a", "model": "ranks"}),
        ("/tokenize", {"inputs": "a", "model": "ranks"}),
        ("/rerank", {"query": "a", "texts": ["b"], "model": "vectors"}),
    ]
    for path, body in wrong:
        status, answer, _ = ask(app, path, body)
        assert (status, answer["error_type"]) == (422, "Validation")
        assert body["model"] in answer["error"]
    status, answer, _ = ask(app, "/v1/embeddings", {"input": "a", "model": "ranks"})
    assert (status, answer["error"]["code"]) == (422, "wrong_model")
    for path in ("/v1/rerank", "/v2/rerank"):
        body = {"query": "a", "documents": ["b"], "model": "vectors"}
        status, answer, _ = ask(app, path, body)
        assert (status, answer["message"]) == (422, answer["detail"])
    alone = make(folder)
    assert ask(alone, "/embed", {"inputs": "a"})[0] == 422
    assert ask(alone, f"/v2/models/{folder.name}", None)[0] == 422
    alone = make(bundle)
    assert ask(alone, "/rerank", {"query": "a", "texts": ["b"]})[0] == 422


def test_the_root_answers_as_the_default_model_can(make, folder, reranker):
    app = make(folder)
    order, _ = expected(reranker)
    status, answer, _ = ask(app, "/", {"query": QUERY, "texts": TEXTS, "truncate": True})
    assert (status, [one["index"] for one in answer]) == (200, order)
    status, answer, _ = ask(app, "/", {"inputs": [QUERY, TEXTS[0]]})
    score = reranker.predict([(QUERY, TEXTS[0])], activation="sigmoid")[0]
    assert answer[0]["score"] == pytest.approx(score, abs=SCORE_ERROR)


BAD = [
    ("/rerank", {"query": "", "texts": ["a"]}, 400),
    ("/rerank", {"query": "a", "texts": []}, 400),
    ("/rerank", {"query": "a", "texts": ["a", " "]}, 400),
    ("/rerank", {"query": "a", "texts": ["a"] * 10}, 413),
    ("/rerank", {"query": "a", "texts": ["a " * 500], "truncate": False}, 413),
    ("/rerank", {"query": "a", "texts": "a"}, 422),
    ("/rerank", {"query": 1, "texts": ["a"]}, 422),
    ("/rerank", {"texts": ["a"]}, 422),
    ("/rerank", {"query": "a", "texts": ["a"], "top_n": 0}, 422),
    ("/rerank", {"query": "a", "texts": ["a"], "model": "other"}, 404),
    ("/rerank", {"query": "a", "texts": ["a"], "truncation_direction": "up"}, 422),
    ("/rerank", b'{"query": "\\ud800", "texts": ["a"]}', 400),
    ("/rerank", b'{"query": "a", "texts": ["a"]', 400),
    ("/v1/rerank", {"query": "a", "documents": []}, 400),
    ("/v1/rerank", {"query": "a", "documents": [{"title": "a"}]}, 422),
    ("/v1/rerank", {"query": "a", "documents": [{"text": ""}]}, 400),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 422),
    ("/v2/rerank", {"query": "a", "documents": [{"title": "a"}]}, 422),
    ("/v1/reranking", {"query": "a", "input": [""]}, 400),
    ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, 422),
    ("/score", {"text_1": "a"}, 400),
    ("/classify", {"input": []}, 400),
    ("/v2/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0}, 422),
    ("/v2/rerank", {"query": "a", "documents": ["a"] * 10}, 413),
    ("/v2/rerank", {"query": "a", "documents": [""], "max_tokens_per_doc": 2}, 400),
    ("/predict", {"inputs": ""}, 400),
    ("/predict", {"inputs": []}, 422),
    ("/predict", {"inputs": ["a", "b", "c"]}, 422),
    ("/predict", {"inputs": [["a", "b", "c"]]}, 422),
    ("/predict", {"inputs": [["a", ""]]}, 400),
    ("/predict", {"inputs": [["a"]] * 10}, 413),
    ("/predict", {"inputs": [[["a"]]]}, 422),
    ("/predict", {"inputs": "a", "parameters": {"function_to_apply": "x"}}, 422),
]  # fmt: skip


def test_bad_bodies_harm_no_neighbour(make, folder, reranker):
    """Each gets its 4xx in the form of its protocol, while good requests get their scores."""
    app = make(folder, max_items=9)
    order, _ = expected(reranker, TEXTS[:2])

    async def main():
        good = [Call(app, "/rerank", {"query": QUERY, "texts": TEXTS[:2]}) for _ in range(5)]
        for path, body, status in BAD:
            call = Call(app, path, body)
            found, answer = await call.answer()
            assert found == status, (path, body, answer)
            name = {"/rerank": "error", "/predict": "error"}.get(path, "message")
            assert isinstance(answer[name], str), answer
        for call in good:
            status, answer = await call.answer()
            assert (status, [one["index"] for one in answer]) == (200, order)

    run(main())


def test_many_texts_are_sent_in_pieces(make, folder, monkeypatch):
    """More than fit into one piece of the answer or of the body, which is decoded in parts."""
    app = make(folder, max_wait=600.0, timeout=600.0)  # no forecast of a busy machine refuses it
    service = app.state.registry.services[folder.name]
    model, free, began = service.loaded.pipeline.model, threading.Event(), threading.Event()
    run_batch = model.run_batch
    texts = [f"the river {i} " + "x" * 200 for i in range(800)]
    body = {"query": QUERY, "documents": [{"text": text} for text in texts]}

    def run_when_free(batch, *, normalize):
        began.set()
        assert free.wait(60)
        return run_batch(batch, normalize=normalize)

    async def main():
        status, answer = await Call(app, "/v1/rerank", body).answer()
        assert status == 200
        assert sorted(one["index"] for one in answer["results"]) == list(range(800))
        scores = [one["relevance_score"] for one in answer["results"]]
        assert scores == sorted(scores, reverse=True)
        monkeypatch.setattr(model, "run_batch", run_when_free)
        gone = Call(app, "/rerank", {"query": QUERY, "texts": texts, "truncate": True})
        assert await asyncio.to_thread(began.wait, 60)
        gone.hang_up()
        await gone.task
        assert gone.status is None
        late = Call(app, "/rerank", {"query": QUERY, "texts": texts, "truncate": True},
                    headers={"X-Request-Timeout": "0.01"})  # fmt: skip
        assert (await late.answer())[0] in (408, 429)

    try:
        run(main())
    finally:
        free.set()
    assert service.scheduler.statistics().waiting_texts == 0
    metrics = app.state.registry.metrics.text().decode()
    assert 'route="/v1/rerank",status="200"' in metrics
    assert f'mirror_rt_text_tokens_count{{model="{folder.name}",status="ok"}}' in metrics


def test_a_reranker_within_a_limit_of_memory(make, bundle, folder, reranker):
    app = make(bundle, folder, memory_limit=3e6, model_aliases=(f"v={bundle}", f"r={folder}"))
    order, _ = expected(reranker, TEXTS[:2])
    with Encoder.load(bundle, threads=1) as encoder:
        vector = encoder.encode(QUERY)
    for _ in range(2):
        status, answer, _ = ask(app, "/rerank", {"query": QUERY, "texts": TEXTS[:2]})
        assert (status, [one["index"] for one in answer]) == (200, order)
        status, answer, _ = ask(app, "/embed", {"inputs": QUERY})
        np.testing.assert_allclose(answer[0], vector, atol=ANY_BATCH)
    assert json.dumps(ask(app, "/info?model=r", None)[1])
