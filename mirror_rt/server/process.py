"""The process that `mirror-rt serve` is: socket, signals, uvicorn, a stop that loses nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import ssl
import time
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from mirror_rt.errors import ConfigError
from mirror_rt.server.app import create_app
from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.protocol import limited_protocol

__all__ = ["serve"]

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
    _check_tls(listen)
    listener = _bind(listen)
    try:
        app = create_app(source, config)
        server = _Server(_uvicorn_config(app, listen), app)
        _handle_signals(server, app)
        server.run(sockets=[listener])
    finally:
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn's, with a stop in which no request is torn from a connection that is kept alive."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            name = f"[{host}]" if ":" in host else host
            logger.info("listening at %s://%s:%d", scheme, name, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("stopping: %d connections", len(self.server_state.connections))
        self._app.state.registry.stop()
        for server in self.servers:
            server.close()
        # From now on every answer ends its connection; those without a request wait a moment.
        self.server_state.default_headers.append((b"connection", b"close"))
        until = time.monotonic() + _LINGER
        while self.server_state.connections and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)
        logger.info("stopped")


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
    """SIGHUP reads the keys again; SIGTERM and Ctrl-C end the process, with 0."""

    def stop(number: int, _: FrameType | None) -> None:
        server.handle_exit(number, None)  # until uvicorn listens to signals itself

    def reload(*_: object) -> None:
        app.state.registry.keys.reload()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, reload)


def _bind(listen: ListenConfig) -> socket.socket:
    """Take the address, without listening at it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen at {listen.host!r}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        what = "it is taken: stop what listens there or choose another --port"
        reason = what if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigError(f"cannot listen at {listen.host} port {listen.port}: {reason}") from error
    listener.set_inheritable(True)
    return listener


def _check_tls(listen: ListenConfig) -> None:
    if listen.tls_certificate is None or listen.tls_key is None:
        return
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(listen.tls_certificate, listen.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS: {listen.tls_certificate} and {listen.tls_key} cannot be used: {error}"
        ) from error
