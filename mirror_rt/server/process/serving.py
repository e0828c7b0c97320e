"""Serve bundles and packs at a socket, in this process or in several workers."""

from __future__ import annotations

import contextlib
import logging
import sys

from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.http.app import create_app
from mirror_rt.server.models.sources import Sources
from mirror_rt.server.process.listening import bind, check_descriptors, say_listening, url_of
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
    listener = bind(listen)
    url = url_of(listener, listen)
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
        One line with the models that would be served, and the address.

    Raises:
        MirrorError: as in `serve`, or a model does not run.
    """
    check_tls(listen)
    check_descriptors(listen)
    with contextlib.closing(bind(listen)) as listener:
        registry = create_app(source, config).state.registry
        try:
            registry.wait_until_warm()
        finally:
            registry.close()
        return f"{', '.join(registry.models.by_name)} at {url_of(listener, listen)}"
