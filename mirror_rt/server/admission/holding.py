"""Limit the memory of open requests besides their texts: bodies, and answers not yet read."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator

from mirror_rt.errors import OverloadedError

# A body of up to so many bytes is not counted: a connection has a buffer of that size in any case.
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

    If one more does not fit, the answer whose client has not read for the longest time is cut off,
    because clients that do not read must neither fill the memory nor keep others out. A single
    answer of any size may always be sent.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        # The task whose client took a piece most recently is last.
        self._sizes: OrderedDict[asyncio.Task[object], int] = OrderedDict()

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[Callable[[], None]]:
        """Reserve room for the answer that a task sends in a block; TimeoutError if it is cut off.

        The block is given a function to call when the client has taken a piece.
        """
        task = asyncio.current_task()
        assert task is not None
        self._sizes[task] = size
        self._held += size
        while self._held > self._most and next(iter(self._sizes)) is not task:
            slowest, freed = self._sizes.popitem(last=False)
            self._held -= freed
            slowest.cancel()
        try:
            yield lambda: self._sizes.move_to_end(task) if task in self._sizes else None
        except asyncio.CancelledError:
            if task in self._sizes:
                raise
            task.uncancel()
            why = "the client did not read its answer, and others needed room"
            raise TimeoutError(why) from None
        finally:
            self._held -= self._sizes.pop(task, 0)
