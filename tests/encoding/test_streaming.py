"""Streams, threads and tasks."""

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from mirror_rt import ConfigError, Encoder, InvalidTextError
from mirror_rt.scheduling.tasks import scheduler_of
from mirror_rt.tokens.windows import cut_ranges, one_ahead, parallel_map, text_windows
from rounding import NORM_ERROR

TEXTS = ["the river", "a", "the old town " * 9, "word", "人生"]


def test_windows_by_count_and_by_characters():
    assert [(w.start, len(w.texts)) for w in text_windows("abcdefg", 3)] == [(0, 3), (3, 3), (6, 1)]
    assert [len(w.texts) for w in text_windows(["x" * 6_000_000] * 7)] == [3, 3, 1]
    assert list(text_windows([])) == []
    assert [w.texts for w in text_windows([None, 3])] == [[None, 3]]


def test_unusable_texts_have_their_numbers_in_the_input():
    windows = text_windows(["a", "", "c", "d", " "], 3)
    assert [[i for i, _ in window.numbered()] for window in windows] == [[1], [4]]


def test_long_calls_are_cut_by_count_and_by_size():
    assert cut_ranges([1, 1, 1, 1, 1], 2, 9) == [range(2), range(2, 4), range(4, 5)]
    assert cut_ranges([4, 5, 1, 20, 1], 9, 9) == [range(2), range(2, 3), range(3, 4), range(4, 5)]


def test_two_items_wait_for_each_thread():
    drawn = []
    with parallel_map(2) as in_threads:
        results = in_threads(str, (drawn.append(i) or i for i in range(9)))
        assert (next(results), drawn) == ("0", [0, 1, 2, 3, 4])
        assert list(results) == [str(i) for i in range(1, 9)]


def test_the_next_item_is_computed_while_one_is_used():
    started = threading.Event()

    def work(item):
        if item == 1:
            started.set()
        return item * 10, threading.current_thread()

    results = one_ahead(work, range(3))
    assert next(results)[0] == 0
    assert started.wait(60)  # without another next
    assert [value for value, _ in results] == [10, 20]


def test_a_single_item_starts_no_thread():
    ((_, thread),) = one_ahead(lambda item: (item, threading.current_thread()), [1])
    assert thread is threading.current_thread()
    assert list(one_ahead(str, [])) == []


def test_items_are_drawn_in_the_callers_thread():
    drawn = []

    def items():
        for i in range(5):
            drawn.append(threading.current_thread())
            yield i

    assert list(one_ahead(str, items())) == list("01234")
    assert set(drawn) == {threading.current_thread()}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_reach_the_caller_and_leave_no_thread(error):
    before = threading.enumerate()

    def fail(item):
        if item == 2:
            raise error("broken")
        return item

    seen = []
    with pytest.raises(error, match="broken"):
        for item in one_ahead(fail, range(5)):
            seen.append(item)
    assert seen == [0, 1]

    def interrupted():
        yield from range(2)
        raise error("stopped")

    with pytest.raises(error, match="stopped"):
        list(one_ahead(str, interrupted()))
    names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in names if name.startswith("mirror_rt")]


def test_encode_iter_is_in_order_and_lazy(encoder):
    drawn = 0

    def endless():
        nonlocal drawn
        for i in itertools.count():
            drawn += 1
            yield f"{TEXTS[i % 5]} {i % 11}"

    stream = encoder.encode_iter(endless(), window=16)
    found = list(itertools.islice(stream, 100))
    stream.close()
    assert drawn <= 100 + 3 * 16
    expected = encoder.encode([f"{TEXTS[i % 5]} {i % 11}" for i in range(100)])
    np.testing.assert_array_equal(found, expected)


def test_encode_iter_takes_the_options_and_gives_vectors_of_their_own(encoder):
    found = list(encoder.encode_iter(iter(TEXTS), window=2, precision="int8", truncate_dim=8))
    np.testing.assert_array_equal(found, encoder.encode(TEXTS, precision="int8", truncate_dim=8))
    assert all(vector.base is None for vector in found)
    assert list(encoder.encode_iter([])) == []


def test_encode_iter_names_the_item_of_the_stream(encoder):
    with pytest.raises(InvalidTextError, match="item 7: the string is empty"):
        list(encoder.encode_iter(["a"] * 7 + [""], window=3))
    rows = list(encoder.encode_iter(["a", None, "b"], window=2, errors="nan"))
    assert [bool(np.isnan(row).all()) for row in rows] == [False, True, False]


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("text", {}, "expected an iterable of str, got str"),
        (None, {}, "expected an iterable of str, got NoneType"),
        (["a"], {"window": 0}, "window must be at least 1, got 0"),
        (["a"], {"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_encode_iter_refuses_at_once(encoder, inputs, options, message):
    with pytest.raises(ConfigError, match=message):
        encoder.encode_iter(inputs, **options)


COUNT_MEMORY = """
import resource, sys
from pathlib import Path
from mirror_rt import Encoder

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

encoder, total = Encoder.load(sys.argv[1], threads=1), int(sys.argv[2])
words = ["river", "road", "town", "word", "people", "house"]
texts = (" ".join(words[(i + j) % 6] for j in range(1 + i % 7)) for i in range(total))
seen, sizes = 0, {}
for vector in encoder.encode_iter(texts, window=int(sys.argv[3])):
    seen += 1
    if seen in (total // 4, total):
        sizes[seen] = resident()
print(seen, sizes[total] - sizes[total // 4], sys.getsizeof(vector))
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("total", "window"),
    [
        (40_000, 1024),
        pytest.param(1_000_000, 8192, marks=[
            pytest.mark.slow,
            pytest.mark.skipif("MIRROR_RT_FULL" not in os.environ,
                               reason="a million texts: set MIRROR_RT_FULL=1"),
        ]),
    ],
)  # fmt: skip
def test_memory_is_flat_over_a_stream(bundle, total, window):
    """From a quarter of the stream to its end, it grows by less than half of its vectors."""
    command = [sys.executable, "-c", COUNT_MEMORY, str(bundle), str(total), str(window)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
    seen, growth, vector = map(int, done.stdout.split())
    assert seen == total
    assert growth < 3 / 4 * total * vector / 2


@pytest.fixture
def held(bundle, monkeypatch):
    """An encoder that counts its batches, each of which waits until the test sets `go`."""
    encoder = Encoder.load(bundle, providers="native")
    run, encoder.batches, encoder.go = encoder.pipeline.model.run_batch, 0, threading.Event()

    def wait(batch, *, normalize):
        encoder.batches += 1
        assert encoder.go.wait(60)
        return run(batch, normalize=normalize)

    monkeypatch.setattr(encoder.pipeline.model, "run_batch", wait)
    yield encoder
    encoder.go.set()


async def until(condition):
    """Wait, as a task does that lets others go on."""
    while not condition():
        await asyncio.sleep(0.001)


def test_the_event_loop_goes_on(held):
    """It sees the first batch begin, and lets it go on."""

    async def main():
        texts = ["the old town " * i + "old the town " * (9 - i) for i in range(10)]
        call = asyncio.create_task(held.aencode(texts, batch_size=1))
        await until(lambda: held.batches == 1)
        held.go.set()
        return await call

    assert asyncio.run(main()).shape == (10, 32)
    assert held.batches == 5


def test_aencode_is_encode(encoder):
    async def main():
        return await asyncio.gather(
            encoder.aencode("one string"),
            encoder.aencode(TEXTS, truncate_dim=8, precision="float16"),
            *(encoder.aencode(text) for text in TEXTS),
        )

    one, some, *each = asyncio.run(main())
    np.testing.assert_allclose(one, encoder.encode("one string"), atol=NORM_ERROR)
    assert some.dtype == np.float16
    half, whole = NORM_ERROR + 2**-12, encoder.encode(TEXTS, truncate_dim=8)
    np.testing.assert_allclose(some, whole, atol=half)
    np.testing.assert_allclose(each, encoder.encode(TEXTS), atol=NORM_ERROR)
    with pytest.raises(InvalidTextError, match="item 1: the string is empty"):
        asyncio.run(encoder.aencode(["a", ""]))


def test_tasks_share_batches(held):
    async def main(count):
        tasks = [asyncio.create_task(held.aencode(TEXTS[i % 5])) for i in range(count)]
        await until(lambda: tasks_so_far() == count)
        held.go.set()
        return await asyncio.gather(*tasks)

    def tasks_so_far():
        return scheduler_of(held).statistics().requests

    found = asyncio.run(main(40))
    assert held.batches <= 1 + len(TEXTS)  # of equal texts that wait, one runs
    np.testing.assert_allclose(found, held.encode(TEXTS * 8), atol=NORM_ERROR)

    async def in_another_event_loop():
        return await asyncio.gather(held.aencode("a"), held.aencode("word"))

    assert len(asyncio.run(in_another_event_loop())) == 2


def test_a_call_of_many_texts_has_batches_of_its_own(encoder, monkeypatch):
    from mirror_rt.scheduling import tasks

    monkeypatch.setattr(tasks, "scheduler_of", None)
    found = asyncio.run(encoder.aencode(iter(TEXTS * 60)))
    np.testing.assert_array_equal(found, encoder.encode(TEXTS * 60))
    rows = asyncio.run(encoder.aencode(["a", ""] * 200, errors="nan"))
    assert np.isnan(rows[1]).all()
    with pytest.raises(InvalidTextError, match="item 1: the string is empty"):
        asyncio.run(encoder.aencode(["a", ""] * 200))
    assert asyncio.run(encoder.aencode("a", batch_size=1)).shape == (32,)


def device_threads():
    return [t for t in threading.enumerate() if t.name.startswith("mirror_rt-device")]


def test_the_scheduler_of_tasks_ends_with_its_encoder(bundle):
    before = set(device_threads())
    encoder = Encoder.load(bundle)
    asyncio.run(encoder.aencode("a"))
    own = set(device_threads()) - before
    assert own
    alive = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert alive() is None
    for thread in own:
        thread.join(60)
        assert not thread.is_alive()


def test_a_cancelled_task_stops_its_work(held):
    async def main():
        texts = [f"{i} word " * 30 for i in range(100)]
        task = asyncio.create_task(held.aencode(texts, batch_size=1))
        await until(lambda: held.batches == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.go.set()

    asyncio.run(main())  # which waits for the thread, too
    assert held.batches == 1


def test_a_failing_batch_is_an_error_and_the_encoder_lives(encoder, monkeypatch):
    def broken(batch, *, normalize):
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(encoder.pipeline.model, "run_batch", broken)
        with pytest.raises(MemoryError):
            list(encoder.encode_iter(TEXTS * 10, window=4))
    assert encoder.encode(TEXTS).shape == (5, 32)
