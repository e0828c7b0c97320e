"""The ASGI application, driven in this process with a model that runs when the test says so."""

import asyncio
import contextlib
import json
import math
import os
import re
import threading
import time

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from asgi_calls import Call, HeldEncoder, run, started
from mirror_rt.scheduling import BatchReport
from mirror_rt.scheduling.admission import Pace
from mirror_rt.server import Models, NamedEncoder, create_app
from mirror_rt.server.admission.api_keys import ApiKeys
from rounding import ANY_BATCH, NORM_ERROR


@pytest.fixture(scope="module")
def encoder(bundle):
    with HeldEncoder.load(bundle, threads=1) as encoder:
        yield encoder


@pytest.fixture
def make(application, encoder):
    """Make applications over the same encoder, which runs when the test says so."""
    encoder.free.set()
    encoder.fails = encoder.nan = False
    with contextlib.ExitStack() as stack:

        def make(**config):
            app = stack.enter_context(application(encoder, **config))
            encoder.began.clear()
            return app

        yield make
        encoder.free.set()


def test_too_much_waits(make, encoder):
    """What is accepted is answered, the rest is refused at once, and room comes back."""
    app = make(max_items=2, max_waiting_texts=4)
    scheduler = app.state.registry.services["tiny"].scheduler

    async def main():
        encoder.free.clear()
        accepted = [Call(app, "/embed", {"inputs": ["a", "b"]})]
        await started(encoder)
        while scheduler.statistics().waiting_texts < 4:  # besides those that run
            accepted.append(Call(app, "/embed", {"inputs": ["a", "b"]}))
            await asyncio.sleep(0.05)
        status, answer = await Call(app, "/v1/embeddings", {"input": "c"}).answer()
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        refused = Call(app, "/embed", {"inputs": "c"})
        assert (await refused.answer())[1]["error_type"] == "Overloaded"
        assert int(refused.headers[b"retry-after"]) >= 1
        encoder.free.set()
        assert {(await call.answer())[0] for call in accepted} == {200}
        assert (await Call(app, "/embed", {"inputs": "c"}).answer())[0] == 200

    run(main())


def test_a_long_wait_is_foretold(make, encoder, reached):
    app = make(max_wait=5.0)
    service = app.state.registry.services["tiny"]
    queue = service.scheduler.intake.queue

    async def main():
        encoder.free.clear()
        calls = [Call(app, "/embed", {"inputs": "a"})]
        await started(encoder)
        calls.append(Call(app, "/embed", {"inputs": "river " * 10}))
        await reached(lambda: service.scheduler.waiting_tokens)
        tokens = service.scheduler.waiting_tokens + sum(queue.admission._running.values())
        report = BatchReport([tokens], tokens, [0.0], 4.0, failed=False)
        queue.admission.pace = Pace(encoder.pipeline.model.run_cost)
        queue.learn(report, time.monotonic())
        # Four seconds are less than the server's limit, and more than this client has.
        hurried = Call(app, "/embed", {"inputs": "a"}, headers={"X-Request-Timeout": "1"})
        assert (await hurried.answer())[0] == 429
        assert hurried.headers[b"retry-after"] == b"4"
        calls.append(Call(app, "/embed", {"inputs": "a"}))
        await reached(lambda: service.scheduler.statistics().waiting_texts == 2)
        encoder.free.set()
        assert [(await call.answer())[0] for call in calls] == [200] * 3

    run(main())


def test_a_text_of_full_length_may_always_wait(make, encoder):
    app = make(max_wait=1e-6)
    service = app.state.registry.services["tiny"]

    async def main():
        assert (await Call(app, "/embed", {"inputs": "a"}).answer())[0] == 200
        encoder.began.clear()
        encoder.free.clear()
        calls = [Call(app, "/embed", {"inputs": "a"})]
        await started(encoder)
        while service.scheduler.waiting_tokens <= encoder.max_length:
            calls.append(Call(app, "/embed", {"inputs": f"{len(calls)} " + "river " * 30}))
            await asyncio.sleep(0.01)
        status, _ = await Call(app, "/embed", {"inputs": "a"}).answer()
        encoder.free.set()
        assert [(await call.answer())[0] for call in calls] == [200] * len(calls)
        assert status == 429
        assert len(calls) > 3

    run(main())


def test_the_pace_counts_what_lies_between_runs():
    pace = Pace(run_cost=10)
    assert pace.seconds(100) == 0
    # A text of 10 tokens came at 0, ran from .5 to 1; one that came at once, from 1.5 to 2.
    pace.add(BatchReport([10], 10, [0.5], 0.5, failed=False), 1.0)
    assert pace.seconds(10) == pytest.approx(1.0)
    assert pace.seconds(190) == pytest.approx(10.0)  # in one run, not in nineteen
    pace.add(BatchReport([10], 10, [0.5], 0.5, failed=False), 2.0)
    assert pace.seconds(10) == pytest.approx(1.0)
    # After an idle hour it is not slower.
    pace.add(BatchReport([10], 10, [0.0], 1.0, failed=False), 3600.0)
    assert pace.seconds(10) == pytest.approx(1.0)
    pace.add(BatchReport([10, 10], 20, [0.0, 0.0], 30.0, failed=True), 3700.0)
    assert pace.seconds(10) == pytest.approx(1.0)
    assert pace.seconds(0) == 0


def test_deadlines(make, encoder):
    app = make()

    async def main():
        encoder.free.clear()
        call = Call(app, "/embed", {"inputs": "a"}, headers={"X-Request-Timeout": "0.05"})
        assert await call.answer() == (
            408, {"error": "no vector within the time given: try again later",
                  "error_type": "Timeout"})  # fmt: skip
        for bad in ("0", "-1", "nan", "inf", "soon", ""):
            call = Call(app, "/embed", {"inputs": "a"}, headers={"X-Request-Timeout": bad})
            assert (await call.answer())[0] == 422
        encoder.free.set()

    run(main())


@pytest.mark.parametrize("texts", [2, 300])
def test_a_client_that_hangs_up_frees_its_room(texts, make, encoder, reached):
    app = make(max_items=300, max_waiting_texts=301)
    registry = app.state.registry
    service = registry.services["tiny"]

    async def main():
        encoder.free.clear()
        first = Call(app, "/embed", {"inputs": "first"})
        await started(encoder)
        gone = Call(app, "/embed", {"inputs": ["second"] * texts})
        await reached(lambda: service.scheduler.waiting_tokens)
        gone.hang_up()
        await gone.task
        assert gone.status is None
        assert service.scheduler.statistics().waiting_texts == 0
        assert service.scheduler.waiting_tokens == 0
        encoder.free.set()
        assert (await first.answer())[0] == 200
        assert (await Call(app, "/embed", {"inputs": ["a"] * 300}).answer())[0] == 200

    run(main())
    assert b"mirror_rt_hang_ups_total 1.0" in registry.metrics.text()


def test_a_model_that_fails(make, encoder, caplog, monkeypatch):
    """424 without a word of the model's own, which has a path and may have a text."""
    app = make()
    monkeypatch.setattr("mirror_rt.server.models.registry._PROBE_KEPT", math.inf)

    async def main():
        encoder.fails = True
        for path, body in (("/v1/embeddings", {"input": "secret"}), ("/embed", {"inputs": "a"})):
            status, answer = await Call(app, path, body).answer()
            assert status == 424
            assert "the model failed on this input" in json.dumps(answer)
        assert (await Call(app, "/ready").answer())[0] == 503
        assert (await Call(app, "/health").answer())[0] == 200
        encoder.fails, encoder.nan = False, True
        status, answer = await Call(app, "/embed", {"inputs": ["a", "b"]}).answer()
        assert (status, answer["error_type"]) == (424, "Backend")
        assert answer["error"].startswith("item 0: the model gives it no finite vector")
        encoder.nan = False
        assert (await Call(app, "/ready").answer())[0] == 503  # the verdict is kept for a while
        monkeypatch.setattr("mirror_rt.server.models.registry._PROBE_KEPT", 0.0)
        assert (await Call(app, "/ready").answer())[0] == 200

    run(main())
    assert "secret" not in caplog.text
    text = app.state.registry.metrics.text().decode()
    for name in ("queue_seconds", "batch_texts", "text_tokens", "execution_seconds"):
        count = re.search(rf'mirror_rt_{name}_count{{model="tiny",status="failed"}} (.*)', text)[1]
        assert float(count) >= 2


def test_an_error_that_nobody_foresaw(make, encoder, monkeypatch, caplog):
    app = make()

    def fail(*_, **__):
        raise KeyError("secret")

    monkeypatch.setattr(encoder.pipeline, "tokenize", fail)
    status, answer = run(_one(app, "/embed", {"inputs": "a"}))
    assert (status, answer["error"]) == (500, "an error of the server's own; its log has more")
    assert "KeyError at fail:" in caplog.text
    assert "secret" not in caplog.text


async def _one(app, path, body=None, **options):
    return await Call(app, path, body, **options).answer()


def test_not_ready_before_it_is_warm(encoder):
    encoder.free.clear()
    started = threading.Event()
    held = threading.Event()

    class Slow(Models):
        pass

    original = encoder.warmup
    encoder.warmup = lambda **_: (started.set(), held.wait(60))
    try:
        app = create_app(Slow([NamedEncoder("tiny", encoder, None, 0)], "tiny"))
        assert started.wait(60)
        assert run(_one(app, "/ready"))[0] == 503
        status, answer = run(_one(app, "/v1/embeddings", {"input": "a"}))
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert run(_one(app, "/health"))[0] == 200
    finally:
        held.set()
        encoder.free.set()
        encoder.warmup = original
    app.state.registry._warming.join()
    assert run(_one(app, "/ready"))[0] == 200
    for service in app.state.registry.services.values():
        service.scheduler.close()
    status, answer = run(_one(app, "/embed", {"inputs": "a"}))
    assert (status, answer["error"]) == (503, "the server is stopping")


def test_mounted_in_another_application(make, encoder):
    app = Starlette(routes=[Mount("/vectors", make(api_keys=("key",)))])
    status, answer = run(_one(app, "/vectors/embed", {"inputs": "a"},
                              headers={"Authorization": "Bearer key"}))  # fmt: skip
    assert status == 200
    np.testing.assert_allclose(answer[0], encoder.encode("a"), atol=ANY_BATCH)
    status, answer = run(_one(app, "/vectors/v1/embeddings", {"input": "a"}))
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert run(_one(app, "/vectors/health"))[0] == 200


def test_a_keys_file_is_read_again(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\n")
    keys = ApiKeys(["given"], file)
    assert keys.accepts("Bearer one")
    assert keys.accepts("bearer given")
    file.write_text("two\nthree\n")
    keys.look()
    assert keys.accepts("Bearer three")
    assert not keys.accepts("Bearer one")
    file.write_text("")
    keys.look()
    assert keys.accepts("Bearer two")
    file.unlink()
    keys.look()
    assert keys.accepts("Bearer two")  # and they stay
    for bad in (None, "", "Bearer", "Bearer ", "two", "Bearer twö", "Bearer two three"):
        assert not keys.accepts(bad)


@pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
@pytest.mark.parametrize(
    ("mode", "warns"),
    [
        (0o600, 0),
        (0o640, 0),
        (0o400, 0),
        (0o644, 1),
        (0o660, 1),
        (0o604, 1),
        (0o602, 1),
        (0o666, 1),
    ],
)
def test_keys_that_others_can_read_or_write_are_warned_of(mode, warns, tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_text("one\n")
    file.chmod(mode)
    with caplog.at_level("WARNING", "mirror_rt.server"):
        assert ApiKeys((), file).accepts("Bearer one")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warns
    assert all(f"chmod 600 {file}" in line and "one" not in line for line in said)


HALVES = [rb"\ud800", rb"\udc00", rb"\uDBFF", rb"a\ud83d", rb"\ud800 and more", rb"\udc00 and more",
          rb"\ud800\u0041 and more", rb"\\\ud800"]  # fmt: skip


def test_half_a_surrogate_pair_is_named(make):
    async def main(app):
        paths = ("/embed", "/v1/embeddings", "/tokenize", "/")
        for path, text in [
            *((paths[0], half) for half in HALVES),
            *((p, HALVES[0]) for p in paths),
        ]:
            field = b"input" if path.startswith("/v1") else b"inputs"
            status, answer = await Call(app, path, b'{"%s":"%s"}' % (field, text)).answer()
            assert status == 400
            assert "half of a surrogate pair" in str(answer)
            assert "truncated" not in str(answer)

    run(main(make()))


def test_a_body_that_is_cut_off_is_no_surrogate(make):
    async def main(app):
        for body in (rb'{"inputs":"\ud83d\ude', rb'{"inputs":"\\ud800"', b'{"inputs":"a'):
            status, answer = await Call(app, "/embed", body).answer()
            assert status == 400
            assert "surrogate" not in answer["error"]

    run(main(make()))


def test_of_two_headers_none_wins(make):
    """Whichever server is around the application."""

    async def main(app):
        good, bad = ("Authorization", "Bearer k"), ("Authorization", "Bearer x")
        for path, body in [("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"}),
                           ("/health", None)]:  # fmt: skip
            for headers in [
                [good, bad], [bad, good], [good, good],
                [good, ("Content-Encoding", "gzip"), ("Content-Encoding", "identity")],
                [good, ("X-Request-Id", "a"), ("X-Request-Id", "b")],
            ]:  # fmt: skip
                status, answer = await Call(app, path, body, headers=headers).answer()
                assert status == 400
                assert f"there is more than one {headers[-1][0].lower()} header" in str(answer)
            lists = [good, ("Accept", "a"), ("Accept", "b")]
            assert (await Call(app, path, body, headers=lists).answer())[0] == 200

    run(main(make(api_keys=("k",))))


def test_a_length_of_any_number_of_digits(make):
    """Whichever server is around the application; its own refuses most of these before."""

    async def main(app):
        for length, expected in (("9" * 5000, 413), ("0" * 5000 + "14", 200), ("", 200)):
            call = Call(app, "/embed", {"inputs": "a"}, headers={"Content-Length": length})
            assert (await call.answer())[0] == expected

    run(main(make()))


def test_names_of_codings_ignore_case(make):
    async def main(app):
        for coding, expected in (("Identity", 200), ("IDENTITY", 200), ("BR", 415), ("GZIP", 400)):
            headers = {"Content-Encoding": coding}
            call = Call(app, "/embed", {"inputs": "a"}, headers=headers)
            assert (await call.answer())[0] == expected

    run(main(make()))


def test_what_the_cache_has_is_answered_without_a_run(bundle, tmp_path, application):
    cached = HeldEncoder.load(bundle, threads=1, cache=tmp_path / "vectors.cache")
    with cached as encoder, application(encoder) as app:
        expected = encoder.encode(["a", "b"])

        async def main():
            encoder.free.clear()
            status, answer = await Call(app, "/embed", {"inputs": ["b", "a", "b"]}).answer()
            assert status == 200
            np.testing.assert_allclose(answer, expected[[1, 0, 1]], atol=NORM_ERROR)
            encoder.free.set()
            encoder.fails = True  # which only a run shows
            assert (await Call(app, "/ready").answer())[0] == 503
            assert (await Call(app, "/embed", {"inputs": "b"}).answer())[0] == 200
            assert (await Call(app, "/embed", {"inputs": "c"}).answer())[0] == 424

        run(main())
        text = app.state.registry.metrics.text().decode()
        for result in ("hit", "miss"):
            assert f'mirror_rt_cache_texts_total{{model="tiny",result="{result}"}} 4.0' in text
