"""Defer Ctrl-C and SIGTERM during training until the running step is finished."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Training was interrupted after a step; the checkpoint holds everything up to that step."""

    def __init__(self, step: int, total: int, checkpoint: str) -> None:
        super().__init__(
            f"interrupted after step {step} of {total}; continue with --resume "
            f"(checkpoint {checkpoint})"
        )


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into an event; a second signal acts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # only the main thread may set handlers
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        restore()

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield event
    finally:
        restore()
