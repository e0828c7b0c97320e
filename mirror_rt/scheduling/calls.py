"""What a caller asks of a scheduler, before it is tokenised; and who may not ask."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from mirror_rt.encoding.options import Job
from mirror_rt.errors import ReentrantCallError
from mirror_rt.scheduling.requests import RequestTimes

__all__ = ["Call", "ReentryGuard", "is_short"]

# Of a call from an event loop that is tokenised there, within a fraction of a millisecond:
# characters, or token ids.
_MOST_INLINE_TEXTS, _MOST_INLINE_SIZE = 8, 1024


class Call(NamedTuple):
    """Texts for which there is room."""

    texts: list[Any]
    job: Job
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
        """What a call holds; `with` leaves none locked, wherever Ctrl-C comes.

        Raises:
            ReentrantCallError: this thread is in the middle of a call.
        """
        if self._lock.locked():
            raise ReentrantCallError(
                "a signal handler calls a Scheduler in the middle of another call: set a flag in "
                "the handler and encode outside of it, or use loop.add_signal_handler"
            )
        return self._lock
