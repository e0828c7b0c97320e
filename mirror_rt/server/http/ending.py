"""End answers in the framing of their HTTP version, and make sure that they arrive, or end."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

access = logging.getLogger("mirror_rt.server.access")

_SECONDS = 2.0
# The most bytes that wait in a connection for its client before the application has to wait; and
# the least that a client has to take of it in `patience` seconds.
_MOST_WAITING = _LEAST_TAKEN = 64 << 10


class LingeringTransport:
    """A transport that ends well: with clients that are still sending, and those that do not read.

    If bytes arrive after a socket was closed, the kernel resets the connection, and the client
    loses the answer that it was about to read. So the writing side is closed first, and incoming
    bytes are discarded until the client closes, for two seconds at most (RFC 9112, 9.6).

    Where a client has taken less than 64 KiB within `patience` seconds, in which there was always
    more for it, the connection is ended at once. So an answer that nobody reads ends, whatever it
    is, and so does a connection that was closed before it was read. All other attributes
    are those of the transport within.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, patience: float
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._written = self._taken = 0  # bytes: all, and those that were taken at `_since`
        self._since = 0.0
        self._held: bytes | None = None  # b"" until the bytes to hold are written
        self.sending = False  # whether the client may have more to send
        self.lingers = False
        transport.set_write_buffer_limits(_MOST_WAITING)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self.lingers or self._transport.is_closing()

    def hold(self) -> None:
        """Hold the next bytes until more are written, or the event loop turns to something else.

        A head and its body then go in one packet, which wakes the client once.
        """
        self._held = b""
        self._loop.call_soon(self._release)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held:
            self.write(held)

    def write(self, data: bytes) -> None:
        """Send bytes, unless the writing side is closed."""
        if self.lingers:
            return
        if self._held == b"":
            self._held = data
            return
        if self._held is not None:
            data, self._held = self._held + data, None
        waited = self._transport.get_write_buffer_size() > 0
        self._transport.write(data)
        self._written += len(data)
        if not waited:
            self._begin_watch()

    def close(self) -> None:
        """Send all that was written, and close: at once, or when the client has read it."""
        if self.is_closing():
            return
        self._release()
        if not self.sending or not self._transport.can_write_eof():
            self._transport.close()
            return
        self.lingers = True
        self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._timer = self._loop.call_later(_SECONDS, self._transport.close)

    def lost(self) -> None:
        """Cancel the timers: the connection is gone."""
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()

    def _begin_watch(self) -> None:
        """Watch from now on how much the client takes, if there is something for it."""
        waiting = self._transport.get_write_buffer_size()
        self._since, self._taken = self._loop.time(), self._written - waiting
        if waiting and self._watch is None:
            self._watch = self._loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        """End the connection if the client has taken too little for too long."""
        self._watch = None
        waiting = self._transport.get_write_buffer_size()
        if not waiting:
            return
        if (left := self._since + self._patience - self._loop.time()) > 0:
            self._watch = self._loop.call_later(left, self._look)
        elif self._written - waiting - self._taken < _LEAST_TAKEN:
            access.info("cut off", extra={"fields": {"reason": "the answer was not read"}})
            self._transport.abort()
        else:
            self._begin_watch()


class FramedApp:
    """An application whose answer to one request ends as the HTTP version and the request allow."""

    cycle: RequestResponseCycle  # uvicorn's state of the request; set before the application runs

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._until_close = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        self._send_on = send
        await self._app(scope, receive, self._send)

    async def _send(self, message: Message) -> None:
        cycle = self.cycle
        if message["type"] == "http.response.start":
            # The rest of the body may never come, or come as slowly as the client likes.
            if cycle.more_body:
                cycle.keep_alive = False
            names = {name.lower() for name, _ in message["headers"]}
            if cycle.scope["http_version"] == "1.0" and b"content-length" not in names:
                self._until_close = True
                cycle.chunked_encoding = False
                cycle.expected_content_length = sys.maxsize
            cast("LingeringTransport", cycle.transport).hold()
        elif self._until_close and not message.get("more_body"):
            cycle.expected_content_length = len(message.get("body", b""))
        await self._send_on(message)
