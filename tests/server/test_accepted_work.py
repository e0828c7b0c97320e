"""Work that a server has accepted: it ends with its client, holds up nobody, and fits in memory."""

import asyncio
import contextlib
import gc
import json
import threading

import numpy as np
import pytest

from asgi_calls import Call, run
from mirror_rt.tokens.tokenization import TextTokenizer
from rounding import ANY_BATCH
from server_process import until

LONG = "river " * 60


class Gate:
    """Counts the calls of a function, and lets them pass once `free` is set."""

    def __init__(self, function):
        self._function = function
        self.calls, self.began, self.free = 0, threading.Event(), threading.Event()

    def __call__(self, *arguments, **options):
        self.calls += 1
        self.began.set()
        assert self.free.wait(60)
        return self._function(*arguments, **options)


@pytest.fixture
def gate(monkeypatch):
    """Replace an attribute by a `Gate` of it, which is opened with the test's end at the latest."""
    gates = []

    def gate(owner, name):
        gates.append(Gate(getattr(owner, name)))
        monkeypatch.setattr(owner, name, lambda *a, **o: gates[-1](*a, **o))
        return gates[-1]

    yield gate
    for made in gates:
        made.free.set()


TEXTS = [LONG] * 1000
# Path, body, what a step of the work calls, and how many of those a few pieces are.
WORK = [
    ("/embed_all", {"inputs": TEXTS}, lambda encoder: (encoder.pipeline.model.runner, "run"), 8),
    ("/tokenize", {"inputs": TEXTS}, lambda _: (TextTokenizer, "pieces"), 100),
    ("/v1/embeddings", {"input": LONG * 4000, "on_too_long": "chunk"},
     lambda _: (TextTokenizer, "_encode"), 8),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "step", "few"), WORK, ids=[path for path, *_ in WORK])
def test_work_ends_with_its_client(path, body, step, few, make, encoder, gate):
    """What has begun may finish; nothing more begins, and its room is free."""
    app = make()
    held = gate(*step(encoder))

    async def main():
        call = Call(app, path, body)
        await asyncio.to_thread(held.began.wait, 60)
        before = held.calls
        call.hang_up()
        await call.task
        assert call.status is None
        held.free.set()
        for service in app.state.registry.services.values():
            assert service.scheduler.statistics().waiting_texts == 0
            await asyncio.to_thread(service.scheduler.close)
        assert held.calls - before <= few

    run(main())


@pytest.mark.parametrize(
    ("path", "body", "step", "few"), WORK[:2], ids=[path for path, *_ in WORK[:2]]
)
def test_a_client_that_does_not_read_is_not_worked_for(
    path, body, step, few, make, encoder, monkeypatch, reached
):
    """The answer is computed as it is taken, so that nothing more is when nobody is there."""
    app = make(max_waiting_texts=30_000, max_wait=60.0)
    owner, name = step(encoder)
    original, calls = getattr(owner, name), []
    monkeypatch.setattr(owner, name, lambda *a, **o: calls.append(0) or original(*a, **o))

    async def main():
        assert (await Call(app, path, body).answer())[0] == 200
        whole = len(calls)
        slow = Call(app, path, body, takes=1)
        await reached(lambda: slow.task in app.state.registry.unread._waiting)
        # What works meanwhile for another one would work for this one, too.
        assert (await Call(app, path, body).answer())[0] == 200
        assert len(calls) <= 2 * whole + 2 * few
        slow.hang_up()
        slow.reads.set()
        await slow.task
        assert len(calls) <= 2 * whole + 3 * few < 3 * whole

    run(main())


def test_what_is_given_up_is_not_kept(make, gate):
    """Of requests that end in 408 while another one works, neither texts nor bodies stay."""
    app = make(max_waiting_texts=30_000)
    held = gate(TextTokenizer, "pieces")
    # Of a tokenizer whose pace is known they would be refused at once.
    app.state.registry.services["tiny"].scheduler.intake.queue.admission.tokenizing._seen.clear()

    async def main():
        first = Call(app, "/tokenize", {"inputs": ["first", *TEXTS]})
        await asyncio.to_thread(held.began.wait, 60)
        late = [
            Call(app, "/tokenize", {"inputs": [f"marked {i}", *TEXTS]},
                 headers={"X-Request-Timeout": "0.2"})
            for i in range(20)
        ]  # fmt: skip
        assert {(await call.answer())[0] for call in late} == {408}
        del late
        gc.collect()
        lists = [found for found in gc.get_objects() if type(found) is list and len(found) > 1000]
        assert not [found for found in lists if str(found[0]).startswith("marked")]
        assert held.calls == 1
        held.free.set()
        assert (await first.answer())[0] == 200
        assert held.calls == 1 + len(TEXTS)

    run(main())


def test_large_requests_wait_for_each_other(make, encoder):
    """Several of all kinds at a time: each gets what it would get alone."""
    app = make(max_wait=60.0)
    texts = [f"{'word ' * (i * 7 % 90)}{i}" for i in range(200)]
    tokens = [[piece._asdict() for piece in pieces] for pieces in encoder.token_pieces(texts)]

    async def main():
        kinds = ["/embed_all", "/tokenize", "/embed"] * 3
        calls = [Call(app, path, {"inputs": texts}) for path in kinds]
        for path, call in zip(kinds, calls, strict=True):
            status, answer = await call.answer()
            assert status == 200
            if path == "/tokenize":
                assert answer == tokens
            elif path == "/embed":
                np.testing.assert_allclose(answer, encoder.encode(texts), atol=ANY_BATCH)
            else:
                for found, expected in zip(answer, encoder.encode_tokens(texts), strict=True):
                    np.testing.assert_allclose(found, expected, atol=ANY_BATCH)

    run(main())


def test_token_vectors_of_a_bad_text(make, monkeypatch, encoder):
    """It is found before the first vectors are sent, wherever it is in the list."""
    app = make()
    run_once = encoder.pipeline.model.runner.run

    async def main():
        texts = ["a"] * 500 + ["word " * 300] + ["a"] * 500
        call = Call(app, "/embed_all", {"inputs": texts, "truncate": False})
        status, answer = await call.answer()
        assert status == 413
        assert answer["error"].startswith("item 500: it is longer than 128 tokens")
        # One that the model fails on, when the answer has begun: it is left without an end.
        calls = []

        def fails_later(batch, output):
            calls.append(output)
            vectors = run_once(batch, output)
            return vectors * np.nan if len(calls) > 3 else vectors

        monkeypatch.setattr(encoder.pipeline.model.runner, "run", fails_later)
        call = Call(app, "/embed_all", {"inputs": ["a"] * 500})
        await call.task
        assert call.status == 200
        with pytest.raises(json.JSONDecodeError):
            json.loads(b"".join(call._parts))
        monkeypatch.setattr(encoder.pipeline.model.runner, "run", lambda *a: run_once(*a) * np.nan)
        assert (await Call(app, "/embed_all", {"inputs": "a"}).answer())[0] == 424

    run(main())


def test_tokenize_has_limits(make):
    app = make()

    async def main():
        most = app.state.registry.services["tiny"].most_characters
        for text, expected in (("a " * (most // 2), 200), ("a " * (most // 2) + "a", 413),
                               ("a" * 9_000_000, 413)):  # fmt: skip
            status, answer = await Call(app, "/tokenize", {"inputs": ["b", text]}).answer()
            assert status == expected, answer
        assert answer["error"] == f"inputs: item 1 has 9000000 characters, and at most {most} " \
                                  "are accepted"  # fmt: skip

    run(main())


class Trickle(Call):
    """A request whose body comes in pieces of 100,000 bytes, as the test lets them."""

    def __init__(self, *arguments, **options):
        self._more = asyncio.Semaphore(0)
        super().__init__(*arguments, **options)
        self._body = [self._body[0][i : i + 100_000] for i in range(0, len(self._body[0]), 100_000)]

    async def _receive(self):
        if not self._body:
            return await super()._receive()
        await self._more.acquire()
        return {"type": "http.request", "body": self._body.pop(0), "more_body": bool(self._body)}

    def send(self, pieces):
        for _ in range(pieces):
            self._more.release()


def test_bodies_have_a_limit_together(make, reached):
    """Some that come slowly fill the room: another is refused, a small one is not."""
    app = make()
    bodies = app.state.registry.bodies
    bodies._most = 1_000_000
    text = {"inputs": "a " * 400_000, "truncate": True}

    async def main():
        slow = Trickle(app, "/embed", text)
        slow.send(4)
        await reached(lambda: bodies._held >= 400_000)
        large = Trickle(app, "/embed", text)
        large.send(100)
        assert (await large.answer())[0] == 429
        assert large.headers[b"connection"] == b"close"
        assert int(large.headers[b"retry-after"]) >= 1
        small = Call(app, "/embed", {"inputs": "a"})
        assert (await small.answer())[0] == 200
        slow.send(100)
        assert (await slow.answer())[0] == 200
        for _ in range(3):  # the room is free again, and for one of any size
            alone = Trickle(app, "/embed", {"inputs": "a " * 1_000_000, "truncate": True})
            alone.send(100)
            assert (await alone.answer())[0] == 200
        gone = Trickle(app, "/embed", text)
        gone.send(4)
        await reached(lambda: bodies._held >= 400_000)
        gone.task.cancel()
        await asyncio.gather(gone.task, return_exceptions=True)
        assert bodies._held == 0

    run(main())


@pytest.mark.parametrize("path", ["/embed_all", "/tokenize"])
def test_answers_that_are_computed_are_not_cut_off(path, make):
    """Where more answers begin than the room is for, all whose clients read them are whole."""
    app = make(max_waiting_texts=30_000, max_wait=60.0)
    app.state.registry.unread._most = 1
    body = {"inputs": ["river"] * 600}

    async def main():
        calls = [Call(app, path, body) for _ in range(12)]
        for call in calls:
            status, found = await call.answer()
            assert (status, len(found)) == (200, 600)

    run(main())


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/embed_all", "/tokenize"])
def test_clients_that_do_not_read(path, make, reached):
    """Where their answers fill the memory, the slowest is cut off, and others are served."""
    app = make(max_waiting_texts=30_000, max_wait=60.0)
    unread = app.state.registry.unread
    body = {"input" if path.startswith("/v1") else "inputs": ["river"] * 2048}

    async def main():
        first = Call(app, path, body, takes=1)
        await reached(lambda: first.task in unread._waiting)
        unread._most, unread._patience = 3 * unread._held, 0.0
        slow = []
        for _ in range(5):
            slow.append(Call(app, path, body, takes=1))
            await reached(lambda: slow[-1].task in unread._waiting)
        assert unread._held <= unread._most
        reader = Call(app, path, body)
        assert (await reader.answer())[0] == 200
        assert first.task.done()
        for call in slow:
            call.reads.set()
        assert (await slow[-1].answer())[0] == 200
        with pytest.raises(json.JSONDecodeError):
            await first.answer()
        await asyncio.gather(*(call.task for call in slow))
        assert unread._held == 0

    run(main())


@pytest.mark.full
@pytest.mark.parametrize(("path", "body"), [
    ("/embed_all", {"inputs": [LONG] * 2000}),
    ("/tokenize", {"inputs": [LONG * 11] * 2000}),
    ("/v1/embeddings", {"input": LONG * 8000, "on_too_long": "chunk"}),
])  # fmt: skip
def test_the_time_to_drain_is_over(path, body, bundle, start_server):
    """What nobody reads, or is too much to finish, does not keep the process: it ends at all."""
    server = start_server(bundle, "--drain", 1, "--max-waiting-texts", 10_000)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(server.socket()).sendall(head + data)
        until(lambda: server.get("/status")[1]["open_requests"] >= 3)
        assert server.stop() == 0
