"""uvicorn's connection, with limits on the head of a request, and ears for half-closed sockets."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mirror_rt.server.config import ListenConfig

__all__ = ["limited_protocol"]

# When a client has closed its side: whether it has closed the other, too, is found out by writing
# to it, at these times. What is written is what any client must skip.
_PROBES = (0.0, 0.05, 0.2, 1.0, 5.0)
_TOO_LARGE = "the head of the request is too large"
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


def limited_protocol(listen: ListenConfig) -> type[HttpToolsProtocol]:
    """Make the class of a server's connections."""

    class LimitedProtocol(_Connection):
        _listen = listen

    return LimitedProtocol


class _Connection(HttpToolsProtocol):
    _listen: ListenConfig
    _header_bytes = 0  # of the head that is parsed
    _unparsed = 0  # that came since it began
    _timer: asyncio.TimerHandle | None = None
    _probes: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Clients connect before they have something to ask: then it is as between two requests.
        self._timer = self.loop.call_later(self._listen.keep_alive, self._close_unused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        if self._probes is not None:
            self._probes.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bound what the parser keeps of a head that does not end."""
        if self._timer is not None:
            if self._unparsed > self._listen.max_header_bytes:
                self._refuse(431, _TOO_LARGE)
                return
            self._unparsed += len(data)
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Go on where an answer is due; False where not, or where TLS cannot be half closed."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if not busy or self.cycle.more_body or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        self._probes = self.loop.create_task(self._probe())
        return True

    async def _probe(self) -> None:
        for seconds in _PROBES:
            await asyncio.sleep(seconds)
            if self.cycle.response_started or self.transport.is_closing():
                return
            self.transport.write(_INTERIM)

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with a head; `msg` is uvicorn's."""
        status = 431 if self._header_bytes > self._listen.max_header_bytes else 400
        self._refuse(status, _TOO_LARGE if status == 431 else msg)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._listen.max_header_bytes:
            raise ValueError("head too large")  # which the parser ends on

    def _await_head(self) -> None:
        self._cancel_timer()
        self._unparsed = 0
        self._timer = self.loop.call_later(self._listen.header_timeout, self._too_slow)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_unused(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, "the head of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        body = b'{"error":"' + message.encode("ascii", "replace") + b'","error_type":"Malformed"}'
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        self.transport.close()
