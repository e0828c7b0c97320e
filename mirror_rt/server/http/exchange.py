"""One request and its answer, in terms of ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import Message, Receive, Scope, Send

from mirror_rt.scheduling import RequestTimes
from mirror_rt.server.admission.problems import Problem

if TYPE_CHECKING:
    from mirror_rt.server.models.generations import Serving

__all__ = ["JSON", "Answer", "Exchange", "HungUp", "until_hang_up"]

JSON = b"application/json"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# A body that is too large is read on for a little, and thrown away: most clients send all of it
# before they look at the answer, which a connection closed at once would tear from their hands.
_DISCARD_SECONDS, _DISCARD_BYTES = 2.0, 256 << 20


class HungUp(Exception):  # noqa: N818  # nothing is wrong
    """The client is gone."""


@dataclass(slots=True)
class Answer:
    """What goes back.

    Attributes:
        body: whole, or in pieces that are sent as they come.
        status: of HTTP.
        content_type: of the body.
        headers: besides it.
    """

    body: bytes | Iterable[bytes]
    status: int = 200
    content_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def send(self, send: Send) -> None:
        """Send it; between pieces, others have their turn."""
        whole = isinstance(self.body, bytes)
        headers = [(b"content-type", self.content_type), *self.headers]
        if isinstance(self.body, bytes):
            headers.append((b"content-length", str(len(self.body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if isinstance(self.body, bytes):
            await send({"type": "http.response.body", "body": self.body})
            return
        for piece in self.body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        assert not whole
        await send({"type": "http.response.body", "body": b""})


class Exchange:
    """A request that is being answered, and what the log will say of it.

    Attributes:
        request_id: the client's, or a new one.
        began: when, in seconds of `time.monotonic`.
        model, texts, tokens: for the log and the metrics; None where it did not come so far.
        status: of the answer, 0 until it begins.
        serving: the models that it uses, once it does.
        times: when the model ran for it; None where nobody traces.
    """

    __slots__ = ("began", "headers", "model", "request_id", "route", "scope", "serving", "status",
                 "texts", "times", "tokens")  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.began = time.monotonic()
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        # Unique is enough, and no secret: uuid4 would ask the system each time.
        known = _REQUEST_ID.fullmatch(given)
        self.request_id = given if known else f"{random.getrandbits(128):032x}"
        self.route = "unmatched"
        self.model: str | None = None
        self.texts: int | None = None
        self.tokens: int | None = None
        self.status = 0
        self.serving: Serving | None = None
        self.times: RequestTimes | None = None

    def timeout(self, most: float) -> float:
        """Seconds that the request still has: those of its header, and at most `most`.

        Raises:
            Problem: the header is no number above 0.
        """
        text = self.headers.get(b"x-request-timeout")
        if text is None:
            return most
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise Problem(422, "X-Request-Timeout: expected seconds above 0", "invalid_value",
                          "X-Request-Timeout")  # fmt: skip
        left = min(seconds, most) - (time.monotonic() - self.began)
        if left <= 0:
            raise Problem(408, "no vector within the time given: try again later", "timeout")
        return left

    async def body(self, receive: Receive, *, limit: int, timeout: float) -> bytes:
        """Read the body, no more than `limit` bytes, within `timeout` seconds.

        Raises:
            Problem: 408, 413 or 415.
            HungUp: the client went away.
        """
        if self.headers.get(b"content-encoding", b"identity") != b"identity":
            raise Problem(415, "compressed bodies are not supported", "encoding", close=True)
        declared = self.headers.get(b"content-length", b"")
        too_large = declared.isdigit() and int(declared) > limit
        try:
            async with asyncio.timeout(timeout):
                if not too_large:
                    chunks, size, more = [], 0, True
                    while more and not too_large:
                        chunk, more = await _chunk(receive)
                        size += len(chunk)
                        chunks.append(chunk)
                        too_large = size > limit
        except TimeoutError:
            raise Problem(408, f"the body did not come within {timeout:g} s", "timeout",
                          close=True) from None  # fmt: skip
        if too_large:
            await self._discard(receive)
            raise Problem(413, f"the body has more than {limit} bytes", "too_large", close=True)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _discard(self, receive: Receive) -> None:
        if b"expect" in self.headers:
            return  # the client waits for leave to send it
        size, more = 0, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while more and size < _DISCARD_BYTES:
                    chunk, more = await _chunk(receive)
                    size += len(chunk)


async def _chunk(receive: Receive) -> tuple[bytes, bool]:
    """The next bytes of a body, and whether more come."""
    message: Message = await receive()
    if message["type"] == "http.disconnect":
        raise HungUp
    return message.get("body", b""), message.get("more_body", False)


@contextlib.asynccontextmanager
async def until_hang_up(receive: Receive) -> AsyncIterator[None]:
    """Run a block of one task until its client goes away: then cancel it and raise HungUp."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        yield
        if gone:
            await asyncio.sleep(0)  # the cancellation came too late for the block: it ends here
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise HungUp from None
    finally:
        watcher.cancel()
