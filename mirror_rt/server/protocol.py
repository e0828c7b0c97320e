"""uvicorn's connection, on which every request has exactly one answer, whatever it looks like.

httptools and uvicorn leave several things of RFC 9112 open or get them wrong. They are mended here:

- An offer to upgrade is ignored and the body is read (RFC 9110, 7.8). httptools ends a message
  after the head of such a request, so that its body is taken for another one:
  https://github.com/Kludex/uvicorn/issues/2722, https://github.com/MagicStack/httptools/issues/124.
- Trailers are dropped, where uvicorn appends them to the headers.
- A refusal comes after the answers to the requests before it, and arrives although the client
  still sends.
- A connection is closed after an answer that did not wait for the body.
- HTTP/1.0 gets neither chunks nor interim answers.
- A client that closes its side only is answered: https://github.com/Kludex/uvicorn/issues/1264.
- Heads, trailers, chunk extensions and pipelines have limits.
"""

from __future__ import annotations

import asyncio
import sys
from enum import Enum
from typing import cast

import httptools
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from mirror_rt.server.config import ListenConfig
from mirror_rt.server.framing import RefusedError, check_head, origin_form, resumed_head
from mirror_rt.server.lingering import LingeringTransport

__all__ = ["limited_protocol"]

# When a client has closed its side: whether it has closed the other, too, is found out by writing
# to it, at these times. What is written is what any client must skip.
_PROBES = (0.0, 0.05, 0.2, 1.0, 5.0)
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LARGE = "the head of the request is too large"
# The rest of the trailers is dropped (RFC 9110, 6.5.1).
_NO_TRAILERS = frozenset(
    {b"connection", b"content-length", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_MOST_QUEUED = 100  # requests of one connection behind the one that is answered


def limited_protocol(listen: ListenConfig) -> type[HttpToolsProtocol]:
    """Make the class of a server's connections."""

    class LimitedProtocol(_Connection):
        _listen = listen

    return LimitedProtocol


class _Phase(Enum):
    """What of a request comes next."""

    NOTHING = 0
    HEAD = 1
    BODY = 2  # and the trailers


class _Connection(HttpToolsProtocol):
    _listen: ListenConfig
    _phase = _Phase.NOTHING
    _field_bytes = 0  # of the target, the headers and the trailers of the request that is parsed
    _unparsed = 0  # bytes that came since the parser made something of them
    _resuming = False  # the parser is told again what it forgot
    _deaf = False  # nothing that comes is parsed any more
    _is_head = False  # of the request that is parsed; HEAD has no body in its answer
    _refusal: bytes | None = None  # that waits for the answers before it
    _answering: RequestResponseCycle | None = None
    _timer: asyncio.TimerHandle | None = None
    _probes: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = LingeringTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._lingering))
        # Clients connect before they have something to ask: then it is as between two requests.
        self._timer = self.loop.call_later(self._listen.keep_alive, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._lingering.lost()
        if self._probes is not None:
            self._probes.cancel()
        super().connection_lost(exc)
        self._disconnect(self._answering)  # uvicorn tells the last request of a pipeline alone

    # What comes in

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as something can be made of it."""
        if self._deaf or self._lingering.lingers:
            return
        if self._phase is not _Phase.NOTHING:
            if self._unparsed > self._listen.max_header_bytes:
                self._refuse(431, _TOO_LARGE)
                return
            self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse_for(error)

    def _feed(self, data: bytes) -> None:
        """Parse bytes; where the client offers another protocol, go on with this one."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._resume()
            else:
                return

    def _resume(self) -> None:
        """Parse on after a head behind which httptools expects another protocol.

        Its parser cannot be told otherwise, so another one is told where the body ends.
        """
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._resuming = True
        self.parser.feed_data(resumed_head(self.headers, keep_alive=self.cycle.keep_alive))
        self._resuming = False

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Go on where an answer is due; False where not, or where TLS cannot be half closed."""
        if self._lingering.lingers or self.scheme == "https":
            return False
        ended = self._phase is _Phase.NOTHING
        if not ended and not self._deaf:
            self._refuse(400, "the request ended before it was whole")
        self._lingering.sending = False
        if not self._is_answering():
            return False
        if ended:
            self.cycle.keep_alive = False
        if self.scope["http_version"] != "1.0":
            self._probes = self.loop.create_task(self._probe())
        return True

    async def _probe(self) -> None:
        for seconds in _PROBES:
            await asyncio.sleep(seconds)
            begun = self._answering is None or self._answering.response_started
            if begun or self.transport.is_closing():
                return
            self.transport.write(_INTERIM)

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        super().on_message_begin()
        self._enter(_Phase.HEAD)
        self._is_head = False
        self._field_bytes = self._unparsed = 0
        self._cancel_timer()
        self._timer = self.loop.call_later(self._listen.header_timeout, self._too_slow)

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._resuming:
            return
        self._count(len(name) + len(value))
        if self._phase is _Phase.HEAD:
            super().on_header(name, value.strip(b" \t"))
        elif name.lower() in _NO_TRAILERS:  # which the parser would obey
            raise RefusedError(400, "a trailer says where the message ends")

    def on_headers_complete(self) -> None:
        if self._resuming:
            return
        self._cancel_timer()
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self._is_head = method == b"HEAD"
        check_head(method, version, self.headers)
        self.url = origin_form(self.url, method)
        if len(self.pipeline) >= _MOST_QUEUED:
            raise RefusedError(429, "too many requests wait on this connection")
        if version == "1.0":
            self.expect_100_continue = False
        super().on_headers_complete()
        self._enter(_Phase.BODY)

    def on_chunk_header(self) -> None:
        self._unparsed = 0

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the body is still to come
        self._enter(_Phase.NOTHING)
        super().on_message_complete()

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._lingering.sending = phase is not _Phase.NOTHING

    def _count(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > self._listen.max_header_bytes:
            raise RefusedError(431, _TOO_LARGE)

    # What goes out

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, _Framed(cycle, app))

    def on_response_complete(self) -> None:
        if self._refusal is None or self.pipeline:
            super().on_response_complete()
        else:
            self._end(self._refusal)

    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _refuse_for(self, error: httptools.HttpParserError) -> None:
        reason = error.__context__  # raised in what the parser called
        if isinstance(reason, RefusedError):
            self._refuse(reason.status, reason.message)
        else:
            self._refuse(400, "this is no valid request of HTTP/1.1")

    def _too_slow(self) -> None:
        self._refuse(408, "the head of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot be read, in its turn, and end the connection."""
        self._cancel_timer()
        self._deaf = self._lingering.sending = True
        answer = _answer(status, message, with_body=not self._is_head)
        if self._phase is _Phase.BODY:
            if self.cycle is self._answering:  # whoever reads the body learns that it ends here
                self._end(b"" if self.cycle.response_started else answer)
                self._disconnect(self.cycle)
                return
            self.pipeline.popleft()  # the last that came
        if self._is_answering():
            self._refusal = answer
        else:
            self._end(answer)

    def _end(self, answer: bytes) -> None:
        if answer:
            self.transport.write(answer)
        self.transport.close()

    @staticmethod
    def _disconnect(cycle: RequestResponseCycle | None) -> None:
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Framed:
    """An application whose answers end as the version of HTTP and the request allow.

    Args:
        cycle: of one request.
        app: what answers it.
    """

    def __init__(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._cycle = cycle
        self._app = app
        self._until_close = False

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Answer the request."""
        await self._app(scope, receive, self._send)

    async def _send(self, message: ASGISendEvent) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            # What is left of the body may never come, or come as slowly as the client likes.
            if cycle.more_body:
                cycle.keep_alive = False
            names = {name.lower() for name, _ in message["headers"]}
            if cycle.scope["http_version"] == "1.0" and b"content-length" not in names:
                self._until_close = True
                cycle.chunked_encoding = False
                cycle.expected_content_length = sys.maxsize
        elif (
            self._until_close
            and message["type"] == "http.response.body"
            and not message.get("more_body")
        ):
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)


def _answer(status: int, message: str, *, with_body: bool) -> bytes:
    body = b'{"error":"' + message.encode("ascii") + b'","error_type":"Malformed"}'
    head = (
        STATUS_LINE[status]
        + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
    )
    return head + body if with_body else head
