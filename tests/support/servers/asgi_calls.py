"""Call the ASGI application without a server, with a model that runs when a test says so."""

from __future__ import annotations

import asyncio
import json
import math
import threading

import numpy as np

from mirror_rt import BundleError, Encoder


class HeldEncoder(Encoder):
    """An encoder that runs while `free` is set; with `fails` it raises, with `nan` it gives NaN."""

    fails = nan = False

    def __init__(self, *arguments, **options):
        self.free = threading.Event()
        self.free.set()
        self.began = threading.Event()
        super().__init__(*arguments, **options)
        model = self.pipeline.model
        self._run, model.run_batch = model.run_batch, self._run_when_free

    def _run_when_free(self, batch, *, normalize):
        self.began.set()
        assert self.free.wait(60)
        if self.fails:
            raise BundleError(f"{self.folder} fails on secret")
        vectors = self._run(batch, normalize=normalize)
        return np.full_like(vectors, np.nan) if self.nan else vectors


class Call:
    """One request to an application; with `hang_up` the client goes away.

    The client takes `takes` pieces of the answer, and reads no more until `reads` is set.
    """

    def __init__(self, app, path, body=None, *, headers=(), root_path="", takes=math.inf):
        scope = {
            "type": "http", "method": "GET" if body is None else "POST", "path": path,
            "root_path": root_path, "query_string": b"", "http_version": "1.1",
            "headers": [
                (n.lower().encode(), v.encode())
                for n, v in (headers.items() if isinstance(headers, dict) else headers)
            ],
        }  # fmt: skip
        self.status, self.headers, self._parts = None, {}, []
        self._gone, self._takes, self.reads = asyncio.Event(), takes, asyncio.Event()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._body = [data if body is not None else b""]
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self):
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        if len(self._parts) >= self._takes:
            await self.reads.wait()
        self._parts.append(message["body"])

    def hang_up(self):
        self._gone.set()

    async def answer(self):
        await self.task
        return self.status, json.loads(b"".join(self._parts))


def run(main):
    """Run a coroutine in an event loop of its own, for at most a minute."""
    return asyncio.run(asyncio.wait_for(main, 60))


async def started(encoder):
    await asyncio.to_thread(encoder.began.wait, 60)
