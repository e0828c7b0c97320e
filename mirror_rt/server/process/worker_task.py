"""Describe to a worker process what it serves."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from mirror_rt.server.config import ListenConfig, ServerConfig

__all__ = ["WorkerTask"]


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The task of a worker.

    Attributes:
        source: bundle or pack.
        config: configuration of its application; `load.threads` is this worker's share.
        listen: how connections are accepted.
        descriptor: file descriptor of the socket, which the worker inherits.
    """

    source: str
    config: ServerConfig
    listen: ListenConfig
    descriptor: int

    def encode(self) -> bytes:
        """Return the bytes that the worker reads."""
        data = pickle.dumps(self)
        return b"%d\n%s" % (len(data), data)
