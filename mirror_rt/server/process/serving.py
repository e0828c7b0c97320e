"""Serve bundles and packs at a socket, in this process or in several workers."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.http.app import create_app
from mirror_rt.server.process.listening import bind, check_tls, url_of
from mirror_rt.server.process.supervisor import Supervisor
from mirror_rt.server.process.uvicorn_server import run_app

logger = logging.getLogger("mirror_rt.server")


def serve(source: str | Path, config: ServerConfig, listen: ListenConfig) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer the accepted requests, and return.

    The server does not listen before the models are loaded.

    Raises:
        ConfigError: the address is not available, or TLS files, keys or another value are unusable.
        MirrorError: an error of `create_app`.
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
    """Do everything that comes before listening, run every model once, and stop.

    Returns:
        One line that says what would be served, and where.

    Raises:
        MirrorError: as in `serve`, or a model does not run.
    """
    check_tls(listen)
    with contextlib.closing(bind(listen)) as listener:
        registry = create_app(source, config).state.registry
        try:
            registry.wait_until_warm()
        finally:
            registry.close()
        return f"{', '.join(registry.models.by_name)} at {url_of(listener, listen)}"
