"""Models that serve together, and the requests that use them."""

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
    """Models, and what runs them.

    Attributes:
        models: by names and languages.
        services: the same by name.
        users: requests that use them now.
    """

    models: Models
    services: Mapping[str, ModelService]
    users: int = 0

    def warm_up(self) -> None:
        """Run every model; MirrorError where one does not."""
        for service in self.services.values():
            service.warm_up()

    def close(self, timeout: float | None = None) -> None:
        """Run what waits, for at most `timeout` seconds, and free the models."""
        for service in self.services.values():
            service.close(timeout=timeout)
        self.models.close()

    def close_when_idle(self, timeout: float) -> None:
        """Close once nobody uses them, and after `timeout` seconds in any case."""
        until = time.monotonic() + timeout
        while self.users and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
        self.close(timeout)


class Swap:
    """Which models serve: others may take their place while requests use them.

    Args:
        first: those that serve now.
    """

    def __init__(self, first: Serving) -> None:
        self.now = first
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def use(self) -> Iterator[Serving]:
        """Let a block use those that serve when it begins, until it ends."""
        with self._lock:
            serving = self.now
            serving.users += 1
        try:
            yield serving
        finally:
            with self._lock:
                serving.users -= 1

    def put(self, new: Serving) -> Serving:
        """Let every use from now on be of `new`; return those before, which may be in use."""
        with self._lock:
            old, self.now = self.now, new
        return old
