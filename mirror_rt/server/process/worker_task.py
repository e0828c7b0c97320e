"""Describe to a worker process what it serves."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from mirror_rt.server.config import ListenConfig, ServerConfig

__all__ = ["WorkerTask"]


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker is told.

    Attributes:
        source: bundle or pack.
        config: of its application; `load.threads` are its own.
        listen: how connections are taken.
        descriptor: of the socket, which it inherits.
    """

    source: str
    config: ServerConfig
    listen: ListenConfig
    descriptor: int

    def encode(self) -> bytes:
        """What `main` reads."""
        data = pickle.dumps(self)
        return b"%d\n%s" % (len(data), data)
