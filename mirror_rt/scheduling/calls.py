"""What a scheduler is asked: by which encoders, with which texts, and who may not ask."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from mirror_rt.errors import ConfigError, ReentrantCallError
from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.scheduling.requests import RequestTimes

__all__ = ["Call", "HasPipeline", "ReentryGuard", "cancel_result", "check_scheduler", "is_short"]

# Of a call from an event loop that is tokenised there, within a fraction of a millisecond:
# characters, or token ids.
_MOST_INLINE_TEXTS, _MOST_INLINE_SIZE = 8, 1024


class HasPipeline(Protocol):
    """An encoder, as far as a scheduler needs it."""

    @property
    def pipeline(self) -> Pipeline:
        """Turns its texts into vectors."""
        ...


class Call(NamedTuple):
    """Texts for which there is room."""

    texts: list[Any]
    plan: EncodePlan
    arrived: float
    timeout: float | None
    times: RequestTimes | None
    of_tokens: bool


def is_short(texts: list[Any]) -> bool:
    """Whether texts are tokenised sooner than another thread has begun to."""
    if len(texts) > _MOST_INLINE_TEXTS:
        return False
    return sum(len(text) for text in texts if isinstance(text, str | list)) <= _MOST_INLINE_SIZE


class ReentryGuard(threading.local):
    """Refuses a call of a signal handler that interrupted a call of the same thread.

    The interrupted code may hold a lock that the handler's call, or the device that is to serve
    it, would wait for: for ever, because the handler has to return first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one a thread, so whoever finds it locked locked it

    def __call__(self) -> threading.Lock:
        """Return what a call holds; `with` leaves none locked, wherever Ctrl-C comes.

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
    """Cancel what was accepted for a task that is gone; nothing happens to one that is done."""
    if not accepted.cancelled() and accepted.exception() is None:
        accepted.result().cancel()


def check_scheduler(pipelines: Sequence[Pipeline], limits: dict[str, int]) -> None:
    """Raise ConfigError for a limit below 1, no model, or models of several dimensions."""
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
