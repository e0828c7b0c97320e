"""The calls of a scheduler: their content, and the checks that they must pass."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from mirror_rt.errors import ConfigError, ReentrantCallError
from mirror_rt.pipeline.pipeline import Pipeline

# Limits of a call that is tokenised in the event loop itself, within a fraction of a millisecond:
# the number of texts, and the total number of characters or token ids.
_MOST_INLINE_TEXTS, _MOST_INLINE_SIZE = 8, 1024


class HasPipeline(Protocol):
    """An encoder, as far as a scheduler needs it."""

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that turns texts into vectors."""


def is_short(texts: list[Any]) -> bool:
    """Return whether tokenising texts takes less time than handing them to another thread."""
    if len(texts) > _MOST_INLINE_TEXTS:
        return False
    return sum(len(text) for text in texts if isinstance(text, str | list)) <= _MOST_INLINE_SIZE


class ReentryGuard(threading.local):
    """Refuses a call by a signal handler that interrupted a call in the same thread.

    The interrupted code may hold a lock that the handler's call needs, or the device that serves
    it. They would wait forever, because the interrupted code goes on only after the handler.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one per thread: if it is locked, this thread locked it

    def __call__(self) -> threading.Lock:
        """Return the lock that a call holds in a `with` block, which releases it even on Ctrl-C.

        Raises:
            ReentrantCallError: this thread is in the middle of a call.
        """
        if self._lock.locked():
            raise ReentrantCallError(
                "a signal handler calls a Scheduler in the middle of another call: set a flag in "
                "the handler and encode outside of it, or use loop.add_signal_handler"
            )
        return self._lock


def cancel_result(accepted: Future[Future[Any]]) -> None:
    """Cancel the request of a task that has ended; has no effect on a finished request."""
    if not accepted.cancelled() and accepted.exception() is None:
        accepted.result().cancel()


def check_scheduler(pipelines: Sequence[Pipeline], limits: dict[str, int]) -> None:
    """Raise ConfigError if a limit is below 1, there is no model, or the dimensions differ."""
    for name, limit in limits.items():
        if limit < 1:
            raise ConfigError(f"{name} must be at least 1, got {limit}")
    if not pipelines:
        raise ConfigError("a Scheduler needs at least one encoder, got none")
    dimensions = {pipeline.model.dimension for pipeline in pipelines}
    if len(dimensions) > 1:
        raise ConfigError(
            f"the encoders of a Scheduler must be of one model, got dimensions {sorted(dimensions)}"
        )
