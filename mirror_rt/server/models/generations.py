"""Hold the models that serve, and count the requests that use them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mirror_rt.server.models.served_models import Models
from mirror_rt.server.models.service import ModelService

__all__ = ["Serving", "Swap"]

_LOOK_EVERY = 0.02  # seconds


@dataclass(eq=False)
class Serving:
    """Models that serve together, and the services that run them.

    Attributes:
        models: models by name and language.
        services: services by model name.
        users: number of requests that use the models now.
    """

    models: Models
    services: Mapping[str, ModelService]
    users: int = 0

    def warm_up(self) -> None:
        """Run every model once; MirrorError if one does not run."""
        for service in self.services.values():
            service.warm_up()

    def close(self, timeout: float | None = None) -> None:
        """Finish waiting work within `timeout` seconds, and free the models."""
        for service in self.services.values():
            service.close(timeout=timeout)
        self.models.close()

    def close_when_idle(self, timeout: float) -> None:
        """Close once no request uses the models, and after `timeout` seconds in any case."""
        until = time.monotonic() + timeout
        while self.users and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
        self.close(timeout)


class Swap:
    """A holder of the models that serve, which can be replaced while requests use them.

    Args:
        first: models that serve now.
    """

    def __init__(self, first: Serving) -> None:
        self.now = first
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def use(self) -> Iterator[Serving]:
        """Let a block use, until it ends, the models that serve when it begins."""
        with self._lock:
            serving = self.now
            serving.users += 1
        try:
            yield serving
        finally:
            with self._lock:
                serving.users -= 1

    def put(self, new: Serving) -> Serving:
        """Serve `new` from now on; return its predecessor, which may still be in use."""
        with self._lock:
            old, self.now = self.now, new
        return old
