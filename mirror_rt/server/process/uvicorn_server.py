"""Run an application in uvicorn: signals, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from mirror_rt.server.config import ListenConfig
from mirror_rt.server.http.connection import limited_protocol
from mirror_rt.server.process.listening import most_connections
from mirror_rt.server.process.tls import Certificate

logger = logging.getLogger("mirror_rt.server")

# Seconds after SIGTERM in which idle connections are kept: a request may be on its way.
_LINGER = 0.5
_LOOK_EVERY = 0.02
# Time for closing the models after the drain; then the process ends even if they are not closed.
_CLOSE_SECONDS = 1.0


def run_app(
    app: Starlette, listen: ListenConfig, listener: socket.socket, on_listening: Callable[[], None]
) -> None:
    """Serve an application until SIGTERM or Ctrl-C; answer the accepted requests, and return.

    The process must belong to the server: it ends soon afterwards, whatever the caller does.
    `on_listening` is called once connections to the bound `listener` are accepted.
    """
    certificate = Certificate(listen)
    server = _Server(_uvicorn_config(app, listen), app, on_listening, certificate, listen.lame_duck)
    _handle_signals(server, app, certificate)
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A uvicorn server that stops without dropping a request on a connection that is kept alive."""

    def __init__(
        self, config: uvicorn.Config, app: Starlette, on_listening: Callable[[], None],
        certificate: Certificate, lame_duck: float,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self._certificate, self._lame_duck = certificate, lame_duck
        self._signals = 0  # that told it to stop
        self._app = app
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._certificate.context = self.config.ssl
        self._certificate.watch()
        self._on_listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.registry.stop()
        self._certificate.close()
        # Balancers see that it is not ready, and send no more; a second signal ends that time.
        until = time.monotonic() + self._lame_duck
        while time.monotonic() < until and self._signals < 2:
            await asyncio.sleep(_LOOK_EVERY)
        logger.info("stopping: %d connections", len(self.server_state.connections))
        drain = self.config.timeout_graceful_shutdown or 0
        began = time.monotonic()
        _end_within(drain + _CLOSE_SECONDS)
        waiting = _accept_all(sockets or [])
        for server in self.servers:
            server.close()
        await self._serve_accepted(waiting)
        # From now on every answer closes its connection; idle connections are kept for a moment.
        self.server_state.default_headers.append((b"connection", b"close"))
        until = time.monotonic() + _LINGER
        while self.server_state.connections and time.monotonic() < until:
            await asyncio.sleep(_LOOK_EVERY)
        left = max(0.0, began + drain - time.monotonic())
        self.config.timeout_graceful_shutdown = left  # type: ignore[assignment]
        await super().shutdown(sockets)
        logger.info("stopped")

    async def _serve_accepted(self, connections: list[socket.socket]) -> None:
        """Answer connections that were made before the listening socket was closed."""

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        loop, tls = asyncio.get_running_loop(), self.config.ssl
        patience = {} if tls is None else {"ssl_handshake_timeout": _LINGER}
        begun = [
            loop.connect_accepted_socket(protocol, connection, ssl=tls, **patience)
            for connection in connections
        ]
        await asyncio.gather(*begun, return_exceptions=True)  # some clients may have gone


def _end_within(seconds: float) -> None:
    """End the process after these seconds in any case, with exit status 0.

    By then, every request was answered or given up. Other work cannot be interrupted:
    loading a model, running it, or tokenising a text.
    """

    def end() -> None:
        logger.warning("ended %g s after the signal: something ran on", seconds)
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _accept_all(listeners: list[socket.socket]) -> list[socket.socket]:
    """Accept all waiting connections: closing the listening socket would reset them."""
    connections = []
    for listener in listeners:
        listener.setblocking(False)
        with contextlib.suppress(OSError):  # no connection waits, or no file descriptor is free
            while True:
                connections.append(listener.accept()[0])
                connections[-1].setblocking(False)
    return connections


def _uvicorn_config(app: Starlette, listen: ListenConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_protocol(listen, app.state.registry.requests, most_connections(listen)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=listen.keep_alive,
        timeout_graceful_shutdown=listen.drain,
        ssl_certfile=listen.tls_certificate,
        ssl_keyfile=listen.tls_key,
    )


def _handle_signals(server: uvicorn.Server, app: Starlette, certificate: Certificate) -> None:
    """Let SIGHUP read files and models again, and SIGTERM and Ctrl-C stop with exit status 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)  # until uvicorn listens to signals itself
    if sys.platform != "win32":

        def reload(*_: object) -> None:
            certificate.ask()
            app.state.registry.reload()

        signal.signal(signal.SIGHUP, reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # blocked when a worker starts
