"""Serve bundles and packs at a socket, in this process or in several workers."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import sys

from mirror_rt.errors import ConfigError
from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.http.app import create_app
from mirror_rt.server.models.sources import Sources
from mirror_rt.server.process.descriptors import check_descriptors
from mirror_rt.server.process.systemd import say_listening
from mirror_rt.server.process.tls import check_tls
from mirror_rt.server.process.uvicorn_server import run_app

logger = logging.getLogger("mirror_rt.server")


def serve(source: Sources, config: ServerConfig, listen: ListenConfig) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer the accepted requests, and return.

    The server does not listen before the models are loaded.

    Raises:
        ConfigError: the address is not available, or TLS files, keys or another value are unusable.
        MirrorError: an error of `create_app`.
    """
    check_tls(listen)
    check_descriptors(listen)
    listener = _bind(listen)
    url = _url_of(listener, listen)
    try:
        if listen.workers > 1 and sys.platform != "win32":
            from mirror_rt.server.process.supervisor import Supervisor

            Supervisor(source, config, listen, listener, url).run()
            return
        app = create_app(source, config)

        def on_listening() -> None:
            logger.info("listening at %s", url)
            say_listening()

        run_app(app, listen, listener, on_listening)
    finally:
        listener.close()


def check(source: Sources, config: ServerConfig, listen: ListenConfig) -> str:
    """Do everything that comes before listening, run every model once, and stop.

    Returns:
        One line that says what would be served, and where.

    Raises:
        MirrorError: as in `serve`, or a model does not run.
    """
    check_tls(listen)
    check_descriptors(listen)
    with contextlib.closing(_bind(listen)) as listener:
        registry = create_app(source, config).state.registry
        try:
            registry.wait_until_warm()
        finally:
            registry.close()
        return f"{', '.join(registry.models.by_name)} at {_url_of(listener, listen)}"


def _url_of(listener: socket.socket, listen: ListenConfig) -> str:
    """Return the address as a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if listen.tls_certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind(listen: ListenConfig) -> socket.socket:
    """Bind the address, without listening at it yet."""
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
