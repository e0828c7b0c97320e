"""Give every request on a uvicorn connection exactly one answer, whatever the request looks like.

httptools and uvicorn leave several points of RFC 9112 open or get them wrong. This module fixes
them:

- An offer to upgrade is ignored and the body is read (RFC 9110, 7.8). httptools ends a message
  after the head of such a request, so that its body is taken for another request:
  https://github.com/Kludex/uvicorn/issues/2722, https://github.com/MagicStack/httptools/issues/124.
- Trailers are dropped, whereas uvicorn appends them to the headers.
- A refusal comes after the answers to earlier requests, and reaches the client even while it is
  still sending.
- A connection is closed after an answer that did not wait for the body.
- HTTP/1.0 clients get neither chunks nor interim answers.
- A client that has closed only its own side still gets its answer:
  https://github.com/Kludex/uvicorn/issues/1264.
- Heads, trailers, chunk extensions and pipelines are limited in size.
- A client that does not read its answer loses the connection: uvicorn would keep both for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Any, cast

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from mirror_rt.server.config import ListenConfig
from mirror_rt.server.exchange import request_id_of
from mirror_rt.server.http.ending import FramedApp, LingeringTransport
from mirror_rt.server.http.framing import RefusedError, check_head, origin_form, resumed_head
from mirror_rt.server.http.framing import refusal as refusal_of
from mirror_rt.server.monitoring.request_log import UNREAD, RequestLog

# When a client has closed its side, the only way to find out whether it has closed the other side
# too is to write to it. This is done at these times, with an interim answer, which clients skip.
_PROBES = (0.0, 0.05, 0.2, 1.0, 5.0)
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LARGE = "the head of the request is too large"
_TOO_SLOW = "the head of the request did not come in time"
# All other trailers are dropped (RFC 9110, 6.5.1).
_NO_TRAILERS = frozenset(
    {b"connection", b"content-length", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_MOST_QUEUED = 100  # requests of one connection that wait behind the one that is being answered


def limited_protocol(
    listen: ListenConfig, requests: RequestLog, most: int
) -> type[HttpToolsProtocol]:
    """Make the class of a server's connections."""

    class LimitedProtocol(_Connection):
        _listen, _requests, _most = listen, requests, most

    return LimitedProtocol


class _Phase(Enum):
    """The part of a request that is expected next."""

    NOTHING = 0
    HEAD = 1
    BODY = 2  # and the trailers


class _Connection(HttpToolsProtocol):
    _listen: ListenConfig
    _requests: RequestLog
    _most: int  # connections of the process
    _phase = _Phase.NOTHING
    _field_bytes = 0  # of the target, headers and trailers of the request that is being parsed
    _unparsed = 0  # bytes received since the parser last recognised something
    _resuming = False  # a new parser is told how to go on
    _deaf = False  # nothing that arrives is parsed any more
    _is_head = False  # whether the request being parsed is a HEAD: its answer has no body
    _refusal: bytes | None = None  # waits for the answers to earlier requests
    _timer: asyncio.TimerHandle | None = None
    _probes: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = LingeringTransport(transport, self.loop, self._listen.answer_timeout)
        self._unanswered: deque[RequestResponseCycle] = deque()  # the first is being answered
        self._app = cast("ASGIApp", self.app)
        super().connection_made(cast("asyncio.Transport", self._lingering))
        # Clients may connect before they have a request: that time counts as time between two.
        self._timer = self.loop.call_later(self._listen.keep_alive, self.transport.close)
        if len(self.connections) > self._most:
            self._refuse(503, "the server has too many connections")
        if len(self.connections) > 2 * self._most:  # nobody reads the refusals
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._lingering.lost()
        if self._probes is not None:
            self._probes.cancel()
        super().connection_lost(exc)
        for cycle in self._unanswered:  # uvicorn tells only the last one
            _disconnect(cycle)

    # Incoming bytes

    def data_received(self, data: bytes) -> None:
        """Parse received data, in pieces no larger than the limit on unparsed bytes."""
        size = self._listen.max_header_bytes
        for start in range(0, len(data), size):
            self._receive(data[start : start + size])

    def _receive(self, data: bytes) -> None:
        """Parse a piece, unless the connection is ending or too much is unparsed already."""
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
            reason = error.__context__  # raised by a callback of the parser
            if isinstance(reason, RefusedError):
                self._refuse(reason.status, reason.message)
            else:
                self._refuse(400, "this is no valid request of HTTP/1.1")

    def _feed(self, data: bytes) -> None:
        """Parse bytes; if the client offers another protocol, go on with this one."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._resume()
            else:
                return

    def _resume(self) -> None:
        """Go on parsing after a head behind which httptools expects another protocol.

        httptools' parser cannot be told to ignore that, so a new one is told where the body ends.
        """
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._resuming = True
        self.parser.feed_data(resumed_head(self.headers, keep_alive=self.cycle.keep_alive))
        self._resuming = False

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Stay open (True) if an answer is due, except with TLS, which cannot be half closed."""
        if self._lingering.lingers or self.scheme == "https":
            return False
        ended = self._phase is _Phase.NOTHING
        if not ended and not self._deaf:
            self._refuse(400, "the request ended before it was whole")
        self._lingering.sending = False
        if not self._unanswered:
            return False
        if ended:
            self.cycle.keep_alive = False
        if self.scope["http_version"] != "1.0":
            self._probes = self.loop.create_task(self._probe())
        return True

    async def _probe(self) -> None:
        for seconds in _PROBES:
            await asyncio.sleep(seconds)
            if self.transport.is_closing() or not self._unanswered:
                return
            if self._unanswered[0].response_started:
                return
            self.transport.write(_INTERIM)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        super().on_message_begin()
        self._enter(_Phase.HEAD)
        self._is_head = False
        self._field_bytes = self._unparsed = 0
        self._cancel_timer()
        self._timer = self.loop.call_later(
            self._listen.header_timeout, self._refuse, 408, _TOO_SLOW
        )

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
        elif name.lower() in _NO_TRAILERS:  # the parser would obey it
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
        framed = FramedApp(self._app)
        self.app = cast("Any", framed)  # of this request; it runs after this method has ended
        super().on_headers_complete()
        if not self.parser.should_keep_alive():
            self.cycle.keep_alive = False  # uvicorn before 0.53 only asks for the version
        framed.cycle = self.cycle
        self._unanswered.append(self.cycle)
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

    # Outgoing bytes

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        if self._refusal is None or self._unanswered:
            super().on_response_complete()
        else:
            self._end(self._refusal)

    def _refuse(self, status: int, message: str) -> None:
        """Refuse a request that cannot be read, when its turn comes, and end the connection."""
        self._cancel_timer()
        self._deaf = self._lingering.sending = True
        name = request_id_of(dict(self.headers or ()))
        self._requests.note(name, UNREAD, status, 0.0, peer=self.client, reason=message)
        fields = [*self.server_state.default_headers, (b"x-request-id", name.encode())]
        answer = STATUS_LINE[status] + refusal_of(message, fields, has_body=not self._is_head)
        if self._phase is _Phase.BODY:
            if self.cycle not in list(self._unanswered)[1:]:  # its turn has come
                self._end(b"" if self.cycle.response_started else answer)
                _disconnect(self.cycle)  # whoever reads the body learns that it ends here
                return
            self._unanswered.pop()
            self.pipeline.popleft()
        if self._unanswered:
            self._refusal = answer
        else:
            self._end(answer)

    def _end(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell an application that nobody waits for its answer."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()
