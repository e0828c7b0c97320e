"""Represent one request and its answer, in terms of ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from starlette.types import Message, Receive, Scope, Send

from mirror_rt.errors import OverloadedError
from mirror_rt.scheduling import RequestTimes
from mirror_rt.server.admission.holding import Unread
from mirror_rt.server.admission.problems import Problem, overloaded, unusable
from mirror_rt.server.config import ServerConfig

HTML, JSON = b"text/html; charset=utf-8", b"application/json"
OCTETS = b"application/octet-stream"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# A little more of a body that is too large is read and discarded: most clients send all of it
# before they read the answer, and would lose the answer if the connection were closed at once.
_DISCARD_SECONDS, _DISCARD_BYTES = 2.0, 256 << 20


# A larger answer is sent in parts of this size, each when the client has taken most of those
# before, so that a client that does not read has little more than two in its connection.
_PART_BYTES = 64 << 10


class HungUp(Exception):  # noqa: N818  # nothing is wrong
    """The client is gone."""


@dataclass(slots=True)
class Answer:
    """An answer to a request.

    Its body is whole or in pieces; an asynchronous generator computes them while they are sent.
    """

    body: bytes | Iterable[bytes] | AsyncGenerator[bytes]
    status: int = 200
    content_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # additional ones
    held: int = 0  # bytes kept in memory until the pieces are sent

    async def send(self, receive: Receive, send: Send, unread: Unread) -> None:
        """Send the answer; other tasks have their turn between two parts."""
        pieces, held = self.body, self.held
        headers = [(b"content-type", self.content_type), *self.headers]
        if isinstance(pieces, bytes):
            if len(pieces) <= _PART_BYTES:
                await self.send_whole(pieces, send)
                return
            headers.append((b"content-length", str(len(pieces)).encode()))
            held, pieces = held + len(pieces), [pieces]
        if not isinstance(pieces, AsyncGenerator):
            pieces = _in_turns(pieces)
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        with unread.hold(held) as waiting:
            async for piece in _until_hang_up(pieces, receive):
                for start in range(0, len(piece), _PART_BYTES):
                    part = piece[start : start + _PART_BYTES]
                    with waiting():
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    async def send_whole(self, body: bytes, send: Send) -> None:
        """Send the answer at once, with this body."""
        length = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", self.content_type), length, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _in_turns(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece


async def _until_hang_up(pieces: AsyncGenerator[bytes], receive: Receive) -> AsyncIterator[bytes]:
    """Yield one piece after the other as long as the client is there."""
    async with contextlib.aclosing(pieces):
        while True:
            async with until_hang_up(receive):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the name that a request has, or a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    # It need not be secret, only unique: uuid4 would ask the operating system each time.
    return given if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


class Exchange:
    """A request that is being answered, and the facts for its line in the log."""

    __slots__ = ("began", "headers", "held", "max_length", "model", "most_seconds", "reason",
                 "request_id", "route", "scope", "status", "texts", "times", "tokens")  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.began = time.monotonic()
        self.request_id = request_id_of(self.headers)
        self.route = "unmatched"
        # For the log and the metrics; None if the request did not get that far.
        self.model: str | None = None
        self.texts: int | None = None
        self.tokens: int | None = None
        self.status = 0  # until the answer begins
        self.reason: str | None = None  # of a status that is an error
        self.held = contextlib.ExitStack()  # in use until the answer is sent
        self.max_length = 0  # most tokens of its model
        self.most_seconds = math.inf  # that the body asks for
        self.times: RequestTimes | None = None  # when the model ran; None without tracing

    def timeout(self, most: float) -> float:
        """Return the seconds that the request still has, by its header: at most `most`."""
        text, most = self.headers.get(b"x-request-timeout"), min(most, self.most_seconds)
        if text is None:
            return most
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise unusable("X-Request-Timeout", "expected seconds above 0")
        left = min(seconds, most) - (time.monotonic() - self.began)
        if left <= 0:
            raise Problem(408, "no vector within the time given: try again later", "timeout")
        return left

    async def body(
        self, receive: Receive, config: ServerConfig, grow: Callable[[int], None]
    ) -> bytes:
        """Read a body of as many bytes, within as many seconds, as the server allows.

        `grow` is called with the size of the body so far; it raises OverloadedError to refuse it.
        """
        limit, timeout = config.max_body_bytes, config.body_timeout
        coding = self.headers.get(b"content-encoding", b"identity").lower()
        if coding not in (b"identity", b"gzip", b"x-gzip", b"deflate"):
            raise Problem(415, "of compressed bodies only gzip and deflate are taken", "encoding",
                          headers={"accept-encoding": "gzip, deflate"}, close=True)  # fmt: skip
        zipped = None if coding == b"identity" else _Unzip()
        too_large = Problem(413, f"the body has more than {limit} bytes", "too_large")
        declared = self.headers.get(b"content-length", b"")
        chunks: list[bytes] = []
        received, size, more = 0, 0, True
        try:
            # As a float, because int() takes at most 4,300 digits.
            if declared.isdigit() and float(declared) > limit:
                raise too_large
            async with asyncio.timeout(timeout):
                while more:
                    chunk, more = await _chunk(receive)
                    received += len(chunk)
                    for part in [chunk] if zipped is None else zipped.parts(chunk, last=not more):
                        size += len(part)
                        chunks.append(part)
                        if max(size, received) > limit:
                            raise too_large
                        grow(size)
                        if zipped is not None:
                            await asyncio.sleep(0)  # a small chunk may have many parts
        except TimeoutError:
            raise Problem(408, f"the body did not come within {timeout:g} s", "timeout",
                          close=True) from None  # fmt: skip
        except (Problem, OverloadedError) as error:
            chunks.clear()
            if more:
                await self._discard(receive)
            problem = error if isinstance(error, Problem) else overloaded(error)
            problem.close = True
            raise problem from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _discard(self, receive: Receive) -> None:
        if b"expect" in self.headers:
            return  # the client waits for permission to send the body
        size, more = 0, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while more and size < _DISCARD_BYTES:
                    chunk, more = await _chunk(receive)
                    size += len(chunk)


class _Unzip:
    """Decompress gzip or deflate (zlib) in pieces, so that it never takes more room than it may."""

    def __init__(self) -> None:
        self._one = zlib.decompressobj(wbits=47)

    def parts(self, data: bytes, *, last: bool) -> Iterator[bytes]:
        """Yield the contents of more bytes, 64 KiB at a time; Problem 400 if it is neither."""
        try:
            while data:
                if self._one.eof:  # RFC 1952 allows several members
                    self._one = zlib.decompressobj(wbits=47)
                yield self._one.decompress(data, _PART_BYTES)
                data = self._one.unused_data if self._one.eof else self._one.unconsumed_tail
        except zlib.error:
            raise Problem(400, "the body is neither gzip nor zlib", "malformed") from None
        if last and not self._one.eof:
            raise Problem(400, "the compressed body is not whole", "malformed")


async def _chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return the next bytes of a body, and whether more follow."""
    message: Message = await receive()
    if message["type"] == "http.disconnect":
        raise HungUp
    return message.get("body", b""), message.get("more_body", False)


@contextlib.asynccontextmanager
async def until_hang_up(receive: Receive) -> AsyncIterator[None]:
    """Run a block of one task; if its client goes away, cancel the block and raise HungUp."""
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
            await asyncio.sleep(0)  # the block had ended already: the cancellation is raised here
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise HungUp from None
    finally:
        watcher.cancel()
