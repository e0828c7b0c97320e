"""Limit the memory of open requests besides their texts: bodies, and answers not yet read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from mirror_rt.errors import OverloadedError

# A body of at most this many bytes is not counted: a connection has such a buffer in any case.
_FREE_BYTES = 64 << 10


class BodyRoom:
    """Limit the bytes of all bodies that are being received or whose request is open.

    A single body of any size is always let in.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Reserve room for one body while a block runs.

        The block is given a function to call with the number of bytes that the body has so far; it
        raises OverloadedError if there is no room for them.
        """
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            if size <= max(held, _FREE_BYTES):
                return
            if self._held > held and self._held - held + size > self._most:
                raise OverloadedError("the bodies of other requests fill the room", retry_after=1.0)
            self._held += size - held
            held = size

        try:
            yield grow
        finally:
            self._held -= held


class Unread:
    """Limit the bytes of all answers that are being sent in pieces.

    If one more does not fit, answers whose clients do not read are cut off, those that have waited
    for their client longest first: such clients must neither fill the memory nor keep others out.
    Answers whose next piece is still being computed are left alone, and so are clients that have
    kept an answer waiting for less than `patience` seconds, even if the limit is exceeded for a
    while. A single answer of any size may always be sent.
    """

    def __init__(self, most: int, patience: float = 2.0) -> None:
        self._most = most
        self._patience = patience
        self._held = 0
        self._sizes: dict[asyncio.Task[object], int] = {}
        # When each answer that waits for its client began to wait; the first has waited longest.
        self._waiting: dict[asyncio.Task[object], float] = {}

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Reserve room for the answer that a task sends in a block; TimeoutError if it is cut off.

        The block is given a function whose context it enters while it waits for the client.
        """
        task = asyncio.current_task()
        assert task is not None
        self._sizes[task] = size
        self._held += size
        self._make_room()
        try:
            yield lambda: self._wait(task)
        except asyncio.CancelledError:
            if task in self._sizes:
                raise
            task.uncancel()
            why = "the client did not read its answer, and others needed room"
            raise TimeoutError(why) from None
        finally:
            self._held -= self._sizes.pop(task, 0)

    @contextlib.contextmanager
    def _wait(self, task: asyncio.Task[object]) -> Iterator[None]:
        self._waiting[task] = time.monotonic()
        try:
            yield
        finally:
            self._waiting.pop(task, None)

    def _make_room(self) -> None:
        latest = time.monotonic() - self._patience
        for task, since in list(self._waiting.items()):
            if self._held <= self._most or since > latest:
                return
            del self._waiting[task]
            self._held -= self._sizes.pop(task)
            task.cancel()
