"""End answers in the framing of their HTTP version, and make sure that they arrive."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_SECONDS = 2.0


class LingeringTransport:
    """A transport that closes so that a client that is still sending gets its whole answer.

    If bytes arrive after a socket was closed, the kernel resets the connection, and the client
    loses the answer that it was about to read. So the writing side is closed first, and incoming
    bytes are discarded until the client closes, for two seconds at most (RFC 9112, 9.6). All other
    attributes are those of the transport within.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.sending = False  # whether the client may have more to send
        self.lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self.lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the writing side is closed."""
        if not self.lingers:
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, and close: at once, or when the client has read everything."""
        if self.is_closing():
            return
        if not self.sending or not self._transport.can_write_eof():
            self._transport.close()
            return
        self.lingers = True
        self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._timer = self._loop.call_later(_SECONDS, self._transport.close)

    def lost(self) -> None:
        """Cancel the timer: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()


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
        elif self._until_close and not message.get("more_body"):
            cycle.expected_content_length = len(message.get("body", b""))
        await self._send_on(message)
