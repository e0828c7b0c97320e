"""Equal texts of calls that wait together run as one row, and stay calls of their own."""

import time
from concurrent.futures import CancelledError

import numpy as np
import pytest

from mirror_rt import DeadlineError, NonFiniteError, Scheduler
from mirror_rt.inference.vector_cache import VectorCache
from mirror_rt.scheduling.requests import WaitingText
from mirror_rt.scheduling.waiting import WaitingTexts
from rounding import of_norms


@pytest.fixture
def scheduler(encoder):
    with Scheduler(encoder, token_budget=40, max_waiting_texts=200) as scheduler:
        first = scheduler.submit("device", normalize_embeddings=False)
        assert encoder.began.acquire(timeout=60)  # what comes now waits
        yield scheduler
        encoder.free()
        first.result(60)


def submit(scheduler, texts, **options):
    return scheduler.submit(texts, normalize_embeddings=False, **options)


def vectors(future):
    return future.result(60).embeddings.tolist()


RIVER, SEA = [5.0, float(ord("r"))], [3.0, float(ord("s"))]


def test_calls_that_wait_together_share_a_row(encoder, scheduler):
    futures = [submit(scheduler, ["river", "sea"]), submit(scheduler, "river")]
    futures.append(submit(scheduler, ["river", "river"]))
    assert scheduler.statistics().waiting_texts == 5
    assert scheduler.waiting_tokens == 8  # of two rows
    encoder.free()
    assert [vectors(future) for future in futures] == [[RIVER, SEA], [RIVER], [RIVER, RIVER]]
    assert encoder.batches[1:] == [["sea", "river"]]
    assert scheduler.waiting_tokens == scheduler.statistics().waiting_texts == 0


def test_options_behind_the_vector_differ(encoder, scheduler):
    plain = submit(scheduler, "river", truncate_dim=1)
    unit = scheduler.submit("river", normalize_embeddings=True)
    encoder.free()
    assert vectors(plain) == [[5.0]]
    np.testing.assert_allclose(np.linalg.norm(vectors(unit)), 1, rtol=of_norms(2))
    assert encoder.batches[1:] == [["river"]]


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_call_that_is_cancelled_takes_no_other_with_it(encoder, scheduler, cancelled):
    futures = [submit(scheduler, "river") for _ in range(3)]
    futures[cancelled].cancel()
    assert scheduler.waiting_tokens == 5
    encoder.free()
    for i, future in enumerate(futures):
        if i == cancelled:
            with pytest.raises(CancelledError):
                future.result(60)
        else:
            assert vectors(future) == [RIVER]
    assert encoder.batches[1:] == [["river"]]


def test_the_last_call_of_a_row_takes_the_row_with_it(encoder, scheduler):
    for future in [submit(scheduler, "river") for _ in range(3)]:
        future.cancel()
    sea = submit(scheduler, "sea")
    assert scheduler.waiting_tokens == 3
    encoder.free()
    assert vectors(sea) == [SEA]
    assert encoder.batches[1:] == [["sea"]]


@pytest.mark.parametrize("late", [0, 1])
def test_a_call_that_is_too_late_takes_no_other_with_it(encoder, scheduler, late, monkeypatch):
    timeouts = [None, None]
    timeouts[late] = 5
    futures = [submit(scheduler, "river", timeout=timeout) for timeout in timeouts]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    encoder.free()
    with pytest.raises(DeadlineError):
        futures[late].result(60)
    assert vectors(futures[1 - late]) == [RIVER]
    assert encoder.batches[1:] == [["river"]]


def test_a_row_that_fails_fails_for_all_by_their_own_index(encoder, scheduler):
    first, second = submit(scheduler, ["sea", "bad~"]), submit(scheduler, ["bad~", "sea", "fine"])
    patient = submit(scheduler, ["sea", "bad~"], errors="nan")
    encoder.free()
    for future, index in ((first, 1), (second, 0)):
        with pytest.raises(NonFiniteError) as error:
            future.result(60)
        assert [row for row, _ in error.value.items] == [index]
    assert vectors(patient)[0] == SEA
    assert np.isnan(vectors(patient)[1]).all()


def test_a_model_that_fails_fails_for_all_who_asked(encoder, scheduler):
    bad, good = [submit(scheduler, "oops!") for _ in range(2)], submit(scheduler, "river")
    encoder.free()
    for future in bad:
        with pytest.raises(ValueError, match="failed on"):
            future.result(60)
    assert vectors(good) == [RIVER]


def test_a_large_call_of_equal_texts(encoder, scheduler):
    large, small = submit(scheduler, ["river"] * 100), submit(scheduler, "river")
    encoder.free()
    assert vectors(large) == [RIVER] * 100
    assert vectors(small) == [RIVER]
    assert sum(map(len, encoder.batches[1:])) == 1


def test_the_due_time_of_any_call_counts():
    queue = WaitingTexts()
    texts = [
        WaitingText("patient", 0, np.arange(4), 4, 10.0, key="a"),
        WaitingText("other", 0, np.arange(40), 40, 5.0, key="b"),
        WaitingText("urgent", 0, np.arange(4), 4, 10.0, deadline=1.0, key="a"),
    ]
    for text in texts:
        queue.add(text)
    assert (len(queue), queue.tokens) == (2, 44)
    (taken,) = queue.take(token_budget=40, run_cost=0)
    assert [text.request for text in taken.all] == ["patient", "urgent"]
    assert queue.tokens == 40
    queue.remove(texts[0])  # it waits no more
    assert [text.request for text in queue.take_all()] == ["other"]


def test_many_equal_texts_leave_in_any_order():
    rng, queue = np.random.default_rng(0), WaitingTexts()
    texts = [WaitingText(i, 0, np.arange(2), 2, 0.0, key=int(rng.integers(3))) for i in range(300)]
    for text in texts:
        queue.add(text)
    for i in rng.permutation(300)[:280].tolist():
        queue.remove(texts[i])
        rows = {text.key for text in texts if text.waits}
        assert (len(queue), queue.tokens) == (len(rows), 2 * len(rows))
    taken = queue.take_all()
    assert sum(len(text.all) for text in taken) == 20
    assert len(queue) == queue.tokens == 0


def test_what_the_cache_has_does_not_wait(encoder, tmp_path):
    cache = VectorCache(tmp_path / "cache", most_bytes=1 << 24, model="steps", dimension=2)
    encoder.pipeline.cache, found = cache, []
    cache.on_find = lambda *counts: found.append(counts)
    with Scheduler(encoder, token_budget=40) as scheduler:
        before = submit(scheduler, ["river", "sea", "river"])
        encoder.step()
        assert vectors(before) == [RIVER, SEA, RIVER]
        other = submit(scheduler, "other")  # runs once the vectors are stored
        encoder.step()
        other.result(60)
        runs = len(encoder.batches)
        assert vectors(submit(scheduler, ["sea", "river"])) == [SEA, RIVER]  # nothing is stepped
        assert len(encoder.batches) == runs
        for _ in range(runs):  # that have begun before
            assert encoder.began.acquire(timeout=60)
        mixed = submit(scheduler, ["sea", "new", "river"])
        assert encoder.began.acquire(timeout=60)
        assert not mixed.done()
        encoder.step()
        assert vectors(mixed) == [SEA, [3.0, float(ord("n"))], RIVER]
        assert encoder.batches[-1] == ["new"]
    assert found == [(0, 3), (0, 1), (2, 0), (2, 1)]
    cache.close()
