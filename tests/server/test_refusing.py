"""A model that refuses everybody is not ready, and says why; one that lets anybody in is."""

import asyncio

import pytest

from asgi_calls import Call, HeldEncoder, run, started
from mirror_rt import Encoder
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app
from mirror_rt.server.models import sources


@pytest.fixture
def encoder(bundle):
    with HeldEncoder.load(bundle, threads=1) as encoder:
        yield encoder
        encoder.free.set()


@pytest.fixture
def app(application, encoder, monkeypatch):
    monkeypatch.setattr("mirror_rt.server.models.registry._REFUSED_SECONDS", 0.0, raising=False)
    with application(encoder, max_items=1, max_waiting_texts=1) as app:
        encoder.began.clear()
        yield app
        encoder.free.set()


def test_a_model_that_refuses_everybody_is_not_ready(app, encoder):
    async def main():
        assert (await Call(app, "/ready").answer())[0] == 200
        encoder.began.clear()
        encoder.free.clear()
        running = Call(app, "/embed", {"inputs": "a"})
        await started(encoder)
        waiting = Call(app, "/embed", {"inputs": "b"})
        late = Call(app, "/embed", {"inputs": "c"})
        assert (await late.answer())[0] == 429
        why = "tiny has refused every request for 0 s: overloaded: 1 texts wait, of at most 1"
        for path in ("/ready", "/v2/health/ready"):
            status, answer = await Call(app, path).answer()
            assert status == 503
            assert why in answer["error"]
        status = (await Call(app, "/status").answer())[1]
        assert (status["ready"], status["state"]) == (False, "refusing")
        assert why in status["refusing"]
        encoder.free.set()
        for call in (running, waiting):
            assert (await call.answer())[0] == 200
        assert (await Call(app, "/ready").answer())[0] == 200  # though nobody has asked since
        status = (await Call(app, "/status").answer())[1]
        assert (status["ready"], status["refusing"]) == (True, None)

    run(main())


def test_a_model_that_lets_somebody_in_is_ready(app, encoder, monkeypatch):
    """Refusals alone are no fault: they are what a busy server does."""
    monkeypatch.setattr("mirror_rt.server.models.registry._REFUSED_SECONDS", 60.0)

    async def main():
        encoder.free.clear()
        running = Call(app, "/embed", {"inputs": "a"})
        await started(encoder)
        waiting = Call(app, "/embed", {"inputs": "b"})
        assert (await Call(app, "/embed", {"inputs": "c"}).answer())[0] == 429
        assert app.state.registry.refusing is None
        assert app.state.registry.state == "ready"
        encoder.free.set()
        await asyncio.gather(running.task, waiting.task)

    run(main())


def test_a_lookup_passes_a_model_that_runs(bundle, static_bundle, monkeypatch):
    """A static encoder answers beside a model that has the turn, and keeps it."""
    opened = []

    class Held(HeldEncoder):
        def __init__(self, folder, *arguments):
            super().__init__(folder, *arguments)
            opened.append(self)

    monkeypatch.setitem(sources.SERVED, "vectors", sources.SERVED["vectors"]._replace(loader=Held))
    names = (f"heavy={bundle}", f"static={static_bundle}")
    config = ServerConfig(model_aliases=names, load=LoadOptions(threads=1))
    app = create_app((bundle, static_bundle), config)
    app.state.registry.wait_until_warm()
    heavy = opened[0]
    heavy.began.clear()
    heavy.free.clear()

    async def main():
        running = Call(app, "/embed", {"inputs": "a", "model": "heavy"})
        await started(heavy)
        for _ in range(3):
            lookup = Call(app, "/embed", {"inputs": "a", "model": "static"})
            assert (await lookup.answer())[0] == 200
        assert not running.task.done()
        heavy.free.set()
        assert (await running.answer())[0] == 200

    try:
        run(main())
    finally:
        heavy.free.set()
        app.state.registry.close()
    assert isinstance(heavy, Encoder)
