"""Cut a stream of texts into windows, and prepare the next one in a thread while one runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar

from mirror_rt.tokens.validity import find_invalid, why_invalid

# Texts that are sorted together: enough for little padding, few enough for constant memory.
WINDOW_TEXTS = 8192
_WINDOW_CHARACTERS = 1 << 24

T = TypeVar("T")
R = TypeVar("R")


class MapFunction(Protocol):
    """A function that is called like `map`."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """Yield `function(item)` for every item, in order."""


class TextWindow(NamedTuple):
    """A window of consecutive texts of the input, which have been checked."""

    start: int  # index of the first text in the input
    texts: list[Any]  # the texts, unchanged
    # Index in the window -> reason, for each text that cannot be encoded.
    invalid: Mapping[int, str]
    # The caller's id for each text, all str or all int; None if they have none.
    ids: list[int | str] | None = None

    @classmethod
    def check(cls, start: int, texts: list[Any]) -> TextWindow:
        """Make a window of texts that nobody has checked yet."""
        return cls(start, texts, find_invalid(texts))

    def numbered(self) -> list[tuple[int, str]]:
        """Return index in the input and reason of each text that cannot be encoded."""
        return [(self.start + i, reason) for i, reason in self.invalid.items()]


def with_results(
    items: Iterable[T], work: Callable[[Iterator[T]], Iterator[R]]
) -> Iterator[tuple[T, R]]:
    """Yield each item with its result of `work`, which draws items ahead of their results.

    Only items that wait for their result are kept; `itertools.tee` would keep up to 57 others.
    """
    waiting: deque[T] = deque()

    def drawn() -> Iterator[T]:
        for item in items:
            waiting.append(item)
            yield item

    for result in work(drawn()):
        yield waiting.popleft(), result


def text_windows(
    texts: Iterable[Any],
    size: int = WINDOW_TEXTS,
    *,
    most_characters: int = _WINDOW_CHARACTERS,
    invalid: Mapping[int, str] | None = None,
) -> Iterator[TextWindow]:
    """Cut a stream into windows of `size` texts, or fewer if they reach `most_characters`.

    `invalid` is the result of `find_invalid` for these texts; None to check them here.
    """
    start, held, refused, characters = 0, list[Any](), dict[int, str](), 0
    for number, text in enumerate(texts):
        if reason := why_invalid(text) if invalid is None else invalid.get(number):
            refused[len(held)] = reason
        else:
            characters += size_of(text)
        held.append(text)
        if len(held) >= size or characters >= most_characters:
            yield TextWindow(start, held, refused)
            start, held, refused, characters = number + 1, [], {}, 0
    if held:
        yield TextWindow(start, held, refused)


def size_of(text: Any) -> int:
    """Return the characters of a text or a pair of texts, or the number of token ids; else 0."""
    if isinstance(text, tuple):
        return sum(len(part) for part in text[:2] if isinstance(part, str))
    return len(text) if isinstance(text, str | list) else 0


def cut_ranges(sizes: Sequence[int], most: int, most_size: int) -> list[range]:
    """Cut into ranges of at most `most` items and `most_size` in all; a larger item is alone."""
    pieces, start, size = [], 0, 0
    for i, added in enumerate(sizes):
        if i > start and (i - start == most or size + added > most_size):
            pieces.append(range(start, i))
            start, size = i, 0
        size += added
    return [*pieces, range(start, len(sizes))]


def one_ahead(function: Callable[[T], R], items: Iterable[T]) -> Generator[R, None, None]:
    """Yield `function(item)` for every item, and compute the next one in a thread meanwhile.

    Items are drawn in the caller's thread, because some iterables (a database cursor, for example)
    work in one thread only. For a single item no thread is started.
    """
    stream = iter(items)
    first = list(islice(stream, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    from concurrent.futures import ThreadPoolExecutor  # here, so that one text saves 10 ms

    with ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-tokenize") as pool:
        pending = pool.submit(function, first[0])
        for item in chain(first[1:], stream):
            result = pending.result()
            pending = pool.submit(function, item)
            yield result
        yield pending.result()


@contextmanager
def parallel_map(workers: int) -> Iterator[MapFunction]:
    """Give a block a `map` that computes `workers` items at a time, and yields them in order.

    One worker is the block's own thread. The end of the block cancels items that have not begun.
    """
    if workers < 2:
        yield map
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        pending: deque[Future[R]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            # Two items wait for each worker, so that none idles while the oldest runs.
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    pool = ThreadPoolExecutor(workers, thread_name_prefix="mirror_rt-run")
    try:
        yield map_in_threads
    finally:
        pool.shutdown(cancel_futures=True)
