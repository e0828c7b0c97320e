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

__all__ = ["check", "serve"]

logger = logging.getLogger("mirror_rt.server")


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
