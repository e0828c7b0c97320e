"""A stream of texts in windows, the next one prepared in a thread while one is computed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

__all__ = ["WINDOW_TEXTS", "Window", "in_parallel", "one_ahead", "windows"]

# Texts sorted together: enough for little padding, few enough for a flat memory.
WINDOW_TEXTS = 8192
_WINDOW_CHARACTERS = 1 << 24

T = TypeVar("T")
R = TypeVar("R")


class Window(NamedTuple):
    """Consecutive texts of the input, the first of them number `start`."""

    start: int
    texts: list[Any]


def windows(texts: Iterable[Any], size: int = WINDOW_TEXTS) -> Iterator[Window]:
    """Cut a stream into windows of `size` texts, fewer where they hold 16 million characters."""
    start, held, characters = 0, list[Any](), 0
    for text in texts:
        held.append(text)
        characters += len(text) if isinstance(text, str) else 0
        if len(held) >= size or characters >= _WINDOW_CHARACTERS:
            yield Window(start, held)
            start, held, characters = start + len(held), [], 0
    if held:
        yield Window(start, held)


def one_ahead(function: Callable[[T], R], items: Iterable[T]) -> Generator[R, None, None]:
    """Yield `function(item)` for every item, the next one being computed in a thread meanwhile.

    Items are drawn in the caller's thread, because an iterable may belong to it (a database
    cursor does). For a single item no thread is started.
    """
    stream = iter(items)
    first = list(islice(stream, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    from concurrent.futures import ThreadPoolExecutor  # 10 ms that a single text does without

    with ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-tokenize") as pool:
        pending = pool.submit(function, first[0])
        for item in chain(first[1:], stream):
            result = pending.result()
            pending = pool.submit(function, item)
            yield result
        yield pending.result()


def in_parallel(
    function: Callable[[T], R], items: Iterable[T], workers: int
) -> Generator[R, None, None]:
    """Yield `function(item)` for every item, in order, `workers` of them computed at a time.

    With one worker, and for a single item, no thread is started. Where one fails, those that have
    not begun are left out.
    """
    stream = iter(items)
    first = list(islice(stream, 2)) if workers > 1 else []
    if len(first) < 2:
        yield from map(function, chain(first, stream))
        return
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="mirror_rt-run") as pool:
        try:
            for item in chain(first, stream):
                pending.append(pool.submit(function, item))
                # Twice as many as run: while the oldest goes on, the others find more to do.
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
