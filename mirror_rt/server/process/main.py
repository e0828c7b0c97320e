"""The process that `mirror-rt serve` is: socket, signals, uvicorn, a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.http.app import create_app
from mirror_rt.server.http.connection import limited_protocol
from mirror_rt.server.process.listening import bind, check_tls, url_of
from mirror_rt.server.process.supervisor import Supervisor

__all__ = ["check", "run_app", "serve"]

logger = logging.getLogger("mirror_rt.server")

# After SIGTERM, connections that are idle are kept for so long: a request may be on its way.
_LINGER = 0.5


def serve(source: str | Path, config: ServerConfig, listen: ListenConfig) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what was accepted, and return.

    Nothing is listened at before the models are loaded.

    Raises:
        ConfigError: the address cannot be had, TLS files or keys cannot be used, or another value.
        MirrorError: what `create_app` raises.
    """
    check_tls(listen)
    listener = bind(listen)
    url = url_of(listener, listen)
    try:
        if listen.workers > 1:
            Supervisor(source, config, listen, listener).run()
            return
        app = create_app(source, config)
        run_app(app, listen, listener, lambda: logger.info("listening at %s", url))
    finally:
        listener.close()


def check(source: str | Path, config: ServerConfig, listen: ListenConfig) -> str:
    """Do all that comes before the port opens, run every model once, and end it again.

    Returns:
        In a line, what would be served where.

    Raises:
        MirrorError: as `serve`, or a model does not run.
    """
    check_tls(listen)
    with contextlib.closing(bind(listen)) as listener:
        registry = create_app(source, config).state.registry
        try:
            registry.wait_until_warm()
        finally:
            registry.close()
        return f"{', '.join(registry.models.by_name)} at {url_of(listener, listen)}"


def run_app(
    app: Starlette,
    listen: ListenConfig,
    listener: socket.socket,
    on_listening: Callable[[], None],
) -> None:
    """Serve an application until SIGTERM or Ctrl-C; answer what was accepted, and return.

    Args:
        app: of `create_app`.
        listen: how connections are taken.
        listener: where; bound.
        on_listening: called once connections are taken.
    """
    server = _Server(_uvicorn_config(app, listen), app, on_listening)
    _handle_signals(server, app)
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's, with a stop in which no request is torn from a connection that is kept alive."""

    def __init__(
        self, config: uvicorn.Config, app: Starlette, on_listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("stopping: %d connections", len(self.server_state.connections))
        self._app.state.registry.stop()
        waiting = _accept_all(sockets or [])
        for server in self.servers:
            server.close()
        await self._serve_accepted(waiting)
        # From now on every answer ends its connection; those without a request wait a moment.
        self.server_state.default_headers.append((b"connection", b"close"))
        until = time.monotonic() + _LINGER
        while self.server_state.connections and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)
        logger.info("stopped")

    async def _serve_accepted(self, connections: list[socket.socket]) -> None:
        """Answer connections that were made before the address was closed."""

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        loop, tls = asyncio.get_running_loop(), self.config.ssl
        patience = {} if tls is None else {"ssl_handshake_timeout": _LINGER}
        begun = [
            loop.connect_accepted_socket(protocol, connection, ssl=tls, **patience)
            for connection in connections
        ]
        await asyncio.gather(*begun, return_exceptions=True)  # some may be gone again


def _accept_all(listeners: list[socket.socket]) -> list[socket.socket]:
    """Take all connections that wait: closing the address would reset them."""
    connections = []
    for listener in listeners:
        listener.setblocking(False)
        with contextlib.suppress(OSError):  # none is left, or no descriptor
            while True:
                connections.append(listener.accept()[0])
                connections[-1].setblocking(False)
    return connections


def _uvicorn_config(app: Starlette, listen: ListenConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_protocol(listen),
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


def _handle_signals(server: uvicorn.Server, app: Starlette) -> None:
    """SIGHUP reads keys and models again; SIGTERM and Ctrl-C end the process, with 0."""

    def stop(number: int, _: FrameType | None) -> None:
        server.handle_exit(number, None)  # until uvicorn listens to signals itself

    def reload(*_: object) -> None:
        app.state.registry.reload()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # of a worker that starts
