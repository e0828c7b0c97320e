"""A stream of texts in windows, the next one prepared in a thread while one is computed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from mirror_rt.tokens.tokenization import find_invalid, why_invalid

__all__ = ["WINDOW_TEXTS", "TextWindow", "in_parallel", "one_ahead", "text_windows"]

# Texts sorted together: enough for little padding, few enough for a flat memory.
WINDOW_TEXTS = 8192
_WINDOW_CHARACTERS = 1 << 24

T = TypeVar("T")
R = TypeVar("R")


class TextWindow(NamedTuple):
    """Consecutive texts of the input, checked.

    Attributes:
        start: number of the first text in the input.
        texts: as they came.
        invalid: position in the window and reason of each text that cannot be encoded.
    """

    start: int
    texts: list[Any]
    invalid: Mapping[int, str]

    @classmethod
    def check(cls, start: int, texts: list[Any]) -> TextWindow:
        """Make a window of texts that nobody has checked yet."""
        return cls(start, texts, find_invalid(texts))

    def numbered(self) -> list[tuple[int, str]]:
        """Give number in the input and reason of each text that cannot be encoded."""
        return [(self.start + i, reason) for i, reason in self.invalid.items()]


def text_windows(
    texts: Iterable[Any],
    size: int = WINDOW_TEXTS,
    *,
    invalid: Mapping[int, str] | None = None,
) -> Iterator[TextWindow]:
    """Cut a stream into windows of `size` texts, fewer where they hold 16 million characters.

    Args:
        texts: any iterable of them.
        size: most texts of a window.
        invalid: what `find_invalid` says of them; None where nobody has asked it yet.
    """
    start, held, refused, characters = 0, list[Any](), dict[int, str](), 0
    for number, text in enumerate(texts):
        if reason := why_invalid(text) if invalid is None else invalid.get(number):
            refused[len(held)] = reason
        else:
            characters += len(text)
        held.append(text)
        if len(held) >= size or characters >= _WINDOW_CHARACTERS:
            yield TextWindow(start, held, refused)
            start, held, refused, characters = number + 1, [], {}, 0
    if held:
        yield TextWindow(start, held, refused)


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
    function: Callable[[T], R], items: Sequence[T], workers: int
) -> Generator[R, None, None]:
    """Yield `function(item)` for every item, in order, `workers` of them computed at a time.

    With one worker, and for a single item, no thread is started. Where one fails, those that have
    not begun are left out.
    """
    if workers == 1 or len(items) < 2:
        return (function(item) for item in items)
    return _in_threads(function, items, workers)


def _in_threads(
    function: Callable[[T], R], items: Iterable[T], workers: int
) -> Generator[R, None, None]:
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="mirror_rt-run") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                # Twice as many as run: while the oldest goes on, the others find more to do.
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
