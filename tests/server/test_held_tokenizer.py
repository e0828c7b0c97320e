"""Tokenising over HTTP, on every route: it shuts nobody out, is foretold, and can be cancelled."""

import asyncio
import threading
from dataclasses import replace

import pytest

from asgi_calls import Call, run
from mirror_rt import Encoder, Reranker
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app
from mirror_rt.tokens.tokenization import TextTokenizer
from rounding import SCORE_ERROR

LONG = "the river " * 40
TEXTS = [f"{LONG}{i}" for i in range(2000)]
IDS = [[7] * 100] * 2000


@pytest.fixture(scope="module")
def folder(tiny_reranker):
    return tiny_reranker("bert")


@pytest.fixture
def app(bundle, folder):
    names = (f"vectors={bundle}", f"ranks={folder}")
    config = ServerConfig(token_budget=256, max_waiting_texts=2048, model_aliases=names,
                          load=LoadOptions(threads=1), max_wait=5.0)  # fmt: skip
    app = create_app((bundle, folder), config)
    app.state.registry.wait_until_warm()
    yield app
    app.state.registry.close()


@pytest.fixture
def held(monkeypatch):
    """What shows, cuts or joins tokens waits until the test lets it go on."""
    began, free = threading.Event(), threading.Event()

    def wait(function):
        def waiting(*arguments, **options):
            began.set()
            assert free.wait(60)
            return function(*arguments, **options)

        return waiting

    for name in ("pieces", "texts_of"):
        monkeypatch.setattr(TextTokenizer, name, wait(getattr(TextTokenizer, name)))
    yield began, free
    free.set()


SHORTENED = {"query": "a", "documents": TEXTS, "max_tokens_per_doc": 8, "model": "ranks"}
# Path, body, and the model that has the work.
WORK = [
    ("/tokenize", {"inputs": ["river"] * 2000}, "vectors"),
    ("/decode", {"ids": IDS}, "vectors"),
    ("/v2/rerank", SHORTENED, "ranks"),
]
IDS_OF_WORK = [path for path, *_ in WORK]


@pytest.mark.parametrize(("path", "body", "name"), WORK, ids=IDS_OF_WORK)
def test_work_of_the_tokenizer_shuts_nobody_out(path, body, name, app, held):
    """Four times as many texts as may wait are with the tokenizer, and others are served."""
    began, free = held
    model = app.state.registry.services[name].scheduler.intake.queue.admission

    async def main():
        model.tokenizing._seen.clear()  # nothing is refused by its time
        calls = [Call(app, path, body) for _ in range(4)]
        await asyncio.to_thread(began.wait, 60)
        small = [Call(app, "/embed", {"inputs": ["a"] * 20, "model": "vectors"}),
                 Call(app, "/v2/rerank", {"query": "a", "documents": ["b"], "model": "ranks"}),
                 Call(app, "/v1/embeddings", {"input": "a", "model": "vectors"})]  # fmt: skip
        for call in small:
            assert (await call.answer())[0] == 200
        free.set()
        statuses = [(await call.answer())[0] for call in calls]
        assert 200 in statuses  # whichever came first to the tokenizer
        assert set(statuses) <= {200, 429}

    run(main())


@pytest.mark.parametrize(("path", "body"), [
    ("/tokenize", {"inputs": TEXTS}),
    ("/decode", {"ids": IDS}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": TEXTS}, "truncate": True}),
    ("/embed", {"inputs": TEXTS, "truncate": True}),
    ("/embed_all", {"inputs": TEXTS, "truncate": True}),
    ("/v1/embeddings", {"input": TEXTS, "on_too_long": "truncate"}),
    ("/v1/rerank", {"query": "a", "documents": TEXTS, "model": "ranks"}),
    ("/v2/rerank", SHORTENED),
])  # fmt: skip
def test_a_tokenizer_that_has_too_much_to_do_refuses_at_once(path, body, app, held):
    """On every route, by the time that what is before a request takes."""
    began, free = held
    name = "ranks" if "rerank" in path else "vectors"
    service = app.state.registry.services[name]
    first = WORK[2] if name == "ranks" else WORK[0]
    if path == "/similarity":
        body = {"inputs": body["inputs"], "parameters": {"truncate": True}}

    async def main():
        load = service.scheduler.intake.queue.admission.tokenizing
        for kind in ("show", "shorten", "tokenize", "join", "check"):
            load.learn(kind, 100, 10.0)  # 10 characters a second
        admission = service.scheduler.intake.queue.admission
        admission.pace._cost = 0.0  # the device is as fast as can be
        admission._limits = replace(admission._limits, max_texts=10_000)
        before = Call(app, *first[:2])
        await asyncio.to_thread(began.wait, 60)
        while not any(load._waiting.values()):  # a thread of an earlier test may have begun
            await asyncio.sleep(0.01)
        late = Call(app, path, body)
        status, _ = await late.answer()
        assert status == 429
        assert int(late.headers[b"retry-after"]) >= 5
        before.hang_up()
        await before.task
        free.set()

    run(main())


def test_a_rerank_that_is_cancelled_ends_where_it_is(app, held):
    """While its documents are cut: nothing more is cut, nothing runs, and its room is free."""
    began, free = held
    scheduler = app.state.registry.services["ranks"].scheduler

    async def main():
        admission = scheduler.intake.queue.admission
        # Nothing is refused by its time.
        admission._limits = replace(admission._limits, max_wait=None)
        runs = scheduler.statistics().batches
        body = SHORTENED | {"documents": TEXTS[:1000]}
        calls = [Call(app, "/v2/rerank", body) for _ in range(2)]
        await asyncio.to_thread(began.wait, 60)
        for call in calls:
            call.hang_up()
            await call.task
            assert call.status is None
        counts = scheduler.statistics()
        assert counts.waiting_texts == counts.waiting_tokens == 0
        assert scheduler.intake.queue.admission.tokenizing._waiting == {False: 0, True: 0}
        free.set()
        body = {"query": "a", "documents": ["b"], "model": "ranks"}
        assert (await Call(app, "/v2/rerank", body).answer())[0] == 200
        assert scheduler.statistics().batches == runs + 1

    run(main())


def test_documents_are_cut_as_they_were(app, folder):
    """The scores are those of documents that are cut first."""
    with Reranker.load(folder, threads=1) as reranker:
        tokenizer = reranker.pipeline.tokenizer
        cut = [text[: tokenizer.pieces(text, special_tokens=False)[7].stop] for text in TEXTS[:20]]
        expected = reranker.predict([("a", text) for text in cut])

    async def main():
        body = SHORTENED | {"documents": TEXTS[:20]}
        status, answer = await Call(app, "/v2/rerank", body).answer()
        assert status == 200
        found = {one["index"]: one["relevance_score"] for one in answer["results"]}
        assert [found[i] for i in range(20)] == pytest.approx(expected.tolist(), abs=SCORE_ERROR)

    run(main())


def test_no_event_loop_waits_for_the_cache(bundle, tmp_path, monkeypatch):
    """It is a file: a disk that does not answer must not hold up all requests."""
    from mirror_rt.inference.vector_cache import VectorCache

    found, threads = VectorCache.find, []

    def find(self, keys):
        threads.append(threading.current_thread())
        return found(self, keys)

    monkeypatch.setattr(VectorCache, "find", find)
    config = ServerConfig(load=LoadOptions(threads=1, cache=tmp_path / "cache"))
    app = create_app(bundle, config)
    app.state.registry.wait_until_warm()

    async def main():
        for _ in range(2):
            assert (await Call(app, "/embed", {"inputs": "a short text"}).answer())[0] == 200

    try:
        threads.clear()
        run(main())
        assert len(threads) == 2
        assert threading.current_thread() not in threads
    finally:
        app.state.registry.close()
    with Encoder.load(bundle, threads=1) as encoder:
        assert encoder.encode("a short text").shape == (32,)
