"""No request holds up the others: what the event loop, and the interpreter's lock, are held for.

Time is the processor time of a thread (`time.thread_time`), which other processes do not lengthen:
of the loop's thread in one step, from one turn of the loop to the next; and of any other thread in
one call of native code, during which it may hold the interpreter's lock. The smallest of some
attempts counts, because a collection of garbage may fall into any of them.
"""

import asyncio
import json
import threading
import time

import pytest

from asgi_calls import Call
from mirror_rt.server.http import decoding, tei
from tiers import tiers

BYTES = (16 << 20) - 100  # the most that a body may have
# Native code that gives the lock back while it works.
FREE = {"encode_batch", "encode_batch_fast", "run", "find_large_json_value", "pad_rows",
        "plan_batches", "acquire", "wait", "get", "sleep", "from_str"}  # fmt: skip


def filled(unit, head=b'{"inputs": [', tail=b"]}", most=BYTES):
    """A body of `most` bytes with as many units as fit."""
    times = (most - len(head) - len(tail)) // len(unit)
    return head + unit * (times - 1) + unit.removesuffix(b",") + tail


def text(unit, more=b'", "truncate": true', most=BYTES):
    return filled(unit.encode(), b'{"inputs": "', more + b"}", most)


def items(item, n):
    return {"inputs": [item] * n}


_COMPARISON = b'{"inputs": {"source_sentence": "a", "sentences": ['
SENTENCES = {"source_sentence": "a", "sentences": ["river " * 20] * 2000}
WIDE = text("a", '🙂", "truncate": true'.encode(), 9_900_000)
REQUESTS = {
    "embed, a text": ("/embed", text("a ", most=9_900_000)),
    "embed, a longer text": ("/embed", text("a ")),
    "embed, a text of blanks": ("/embed", text(" ")),
    "embed, a text of other scripts": ("/embed", text("人é")),
    "embed, a text with a wide character": ("/embed", WIDE),
    "embed, escapes": ("/embed", text("\\n\\u00e9")),
    "embed, numbers": ("/embed", filled(b"5,")),
    "embed, texts of one character": ("/embed", filled(b'"a",')),
    "embed, empty lists": ("/embed", filled(b"[],")),
    "embed, white space": ("/embed", b" " * BYTES + b"{}"),
    "embed, nothing": ("/embed", b"[" * BYTES),
    "embed, short texts": ("/embed", items("river", 2048)),
    "embed, long texts": ("/embed", items("river " * 1300, 2048) | {"truncate": True}),
    "embed, token ids": ("/embed", items([5] * 128, 2048)),
    "openai": ("/v1/embeddings", {"input": ["river " * 20] * 2048}),
    "openai, base64": ("/v1/embeddings", {"input": ["river"] * 2048, "encoding_format": "base64"}),
    "openai, chunks": ("/v1/embeddings", {"input": "river " * 100_000, "on_too_long": "chunk"}),
    "similarity": ("/similarity", {"inputs": SENTENCES}),
    "root, a comparison": ("/", filled(b'"river",', _COMPARISON, b"]}}")),
    "root, numbers compared": ("/", filled(b"5,", _COMPARISON, b"]}}")),
    "root, what is no request": ("/", filled(b"[],", b'{"inputs": 1, "x": [')),
    "decode": ("/decode", {"ids": [[5] * 128] * 2048}),
    "decode, numbers": ("/decode", filled(b"5,", b'{"ids": [')),
    "embed_all": ("/embed_all", items("river " * 60, 300)),
    "tokenize, a text": ("/tokenize", text("a ", b'"')),
    "tokenize, texts": ("/tokenize", items("a " * 2000, 40)),
    "health": ("/health", None), "ready": ("/ready", None), "metrics": ("/metrics", None),
    "info": ("/info", None), "models": ("/v1/models", None), "model": ("/v1/models/tiny", None),
    "page": ("/", None), "status": ("/status", None), "docs": ("/docs", None),
    "renderer": ("/docs/scalar.js", None), "openapi": ("/openapi.json", None),
}  # fmt: skip


class Watchdog:
    """While it is entered: the longest step of the loop, the longest native call of a thread."""

    def __init__(self):
        self.step, self.call = (0.0, ""), (0.0, "")

    def __enter__(self):
        self._run = asyncio.Handle._run
        watchdog, main = self, threading.current_thread()

        def timed(handle):
            began = time.thread_time()
            watchdog._run(handle)
            if threading.current_thread() is main:
                watchdog.step = max(watchdog.step, (time.thread_time() - began, repr(handle)))

        asyncio.Handle._run = timed
        return self

    def __exit__(self, *_):
        asyncio.Handle._run = self._run

    def profile(self, frame, event, function):
        """What `threading.setprofile` takes."""
        local = self._local
        if event == "c_call":
            local.began = time.thread_time()
        elif event in ("c_return", "c_exception") and hasattr(local, "began"):
            seconds = time.thread_time() - local.began
            if function.__name__ not in FREE:
                self.call = max(self.call, (seconds, repr(function)))

    _local = threading.local()


@pytest.fixture(scope="module")
def limit():
    """Ten times what it takes here to decode the largest body that is decoded at once."""
    decode, body = tei._embed._decoders["refuse"].decode, filled(b"[],", most=decoding._SMALL)

    def seconds():
        began = time.thread_time()
        decode(body)
        return time.thread_time() - began

    return 10 * min(seconds() for _ in range(5))


@pytest.fixture(scope="module")
def served(encoder, application):
    """An application whose threads, but for the loop's, are watched; and who watches."""
    watchdog = Watchdog()
    threading.setprofile(watchdog.profile)
    try:
        with application(encoder, max_wait=60, timeout=300) as app:
            yield app, watchdog
    finally:
        threading.setprofile(None)


@pytest.fixture(scope="module")
def loop():
    """One for all, because an application belongs to one."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("name", tiers(REQUESTS, fast=REQUESTS.keys() - {"embed, long texts"}))
def test_nobody_is_held_up(name, served, loop, limit):
    app, watchdog = served
    path, body = REQUESTS[name]
    body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()

    async def ask():
        call = Call(app, path, body)
        await call.task
        return call.status

    for attempt in range(3):
        watchdog.step = watchdog.call = (0.0, "")
        with watchdog:
            status = loop.run(ask())
        assert status in (200, 400, 413, 422), status
        longest = max(watchdog.step, watchdog.call)
        print(name, attempt, status, watchdog.step, watchdog.call)  # noqa: T201
        if longest[0] < limit:
            return
    pytest.fail(f"held for {longest[0]:.3f} s, more than {limit:.3f}: {longest[1]}")
