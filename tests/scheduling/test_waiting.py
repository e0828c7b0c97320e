import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_rt.scheduling.requests import WaitingText
from mirror_rt.scheduling.waiting import WaitingTexts, best_window


def waiting(*lengths, arrived=0.0, deadlines=None):
    texts = [
        WaitingText(f"request {i}", 0, np.arange(n), n, arrived + i * 1e-3, deadline)
        for i, (n, deadline) in enumerate(
            zip(lengths, deadlines or [None] * len(lengths), strict=True)
        )
    ]
    queue = WaitingTexts()
    for text in texts:
        queue.add(text)
    return queue, texts


def lengths(batch):
    return [text.length for text in batch]


def test_fills_to_the_budget_and_not_beyond():
    queue, _ = waiting(*[10] * 25)
    sizes = []
    while batch := queue.take(token_budget=100, run_cost=16):
        sizes.append(len(batch))
    assert sizes == [10, 10, 5]
    assert (len(queue), queue.tokens) == (0, 0)


def test_neighbours_in_length_run_together():
    queue, _ = waiting(9, 100, 8, 98, 10, 99)
    assert lengths(queue.take(token_budget=400, run_cost=16)) == [8, 9, 10]
    assert lengths(queue.take(token_budget=400, run_cost=16)) == [98, 99, 100]


def test_an_outlier_runs_alone():
    queue, _ = waiting(5, 6, 500, 5, 6)
    assert lengths(queue.take(token_budget=2048, run_cost=16)) == [5, 5, 6, 6]
    assert lengths(queue.take(token_budget=2048, run_cost=16)) == [500]


def test_a_text_longer_than_the_budget_runs_alone():
    queue, _ = waiting(600, 700)
    assert lengths(queue.take(token_budget=512, run_cost=16)) == [600]
    assert lengths(queue.take(token_budget=512, run_cost=16)) == [700]


def test_where_a_run_costs_much_short_and_long_share_it():
    queue, _ = waiting(5, 30)
    assert lengths(queue.take(token_budget=2048, run_cost=1024)) == [5, 30]


def test_the_oldest_is_always_in_the_next_batch():
    """However much short work comes, a long text waits for no more than the one batch before it."""
    queue, _ = waiting(400, *[4] * 600)
    assert lengths(queue.take(token_budget=2048, run_cost=16))[-1] == 400


def test_the_nearest_deadline_comes_first():
    queue, _ = waiting(10, 200, deadlines=[None, 0.5])
    assert lengths(queue.take(token_budget=210, run_cost=1)) == [200]


def test_a_distant_deadline_does_not_lose_its_place():
    queue, _ = waiting(200, 10, deadlines=[3600, None])
    assert lengths(queue.take(token_budget=210, run_cost=1)) == [200]


def test_removed_texts_are_gone_and_removing_twice_is_nothing():
    queue, texts = waiting(10, 10, 10)
    queue.remove(texts[1])
    queue.remove(texts[1])
    assert queue.take(token_budget=100, run_cost=16) == [texts[0], texts[2]]
    assert queue.take(token_budget=100, run_cost=16) == []


def test_memory_follows_what_waits():
    queue, _ = waiting()
    for i in range(5000):
        text = WaitingText("request", 0, np.arange(3), 3, 0.0, 1e9 + i)
        queue.add(text)
        queue.remove(text)
    assert len(queue._by_due) < 200


@given(
    st.lists(st.integers(1, 600), min_size=1, max_size=40),
    st.integers(0, 39),
    st.integers(1, 2048),
    st.integers(1, 2000),
)
def test_best_window_is_the_best_of_all(values, first, budget, cost):
    lengths, first = np.sort(np.array(values)), first % len(values)

    def work(start, stop):
        return lengths[start:stop].sum() / ((stop - start) * lengths[stop - 1] + cost)

    best = max(
        work(start, stop)
        for start in range(first + 1)
        for stop in range(first + 1, len(values) + 1)
        if stop - start == 1 or (stop - start) * lengths[stop - 1] <= budget
    )
    start, stop = best_window(lengths, first, token_budget=budget, run_cost=cost)
    assert start <= first < stop
    assert stop - start == 1 or (stop - start) * lengths[stop - 1] <= budget
    assert work(start, stop) == pytest.approx(best)


def add(queue, length, arrived, **more):
    text = WaitingText(None, 0, np.zeros(length, np.int32), length, arrived, **more)
    queue.add(text)
    return text


def test_a_long_queue_is_served_nearly_in_its_order():
    """Texts of a common length that come later do not overtake the others for ever."""
    queue = WaitingTexts()
    sizes = np.random.default_rng(0).lognormal(2.6, 0.6, 20_000).astype(int) + 3
    served, came, waited = 0, {}, []
    for turn in range(300):
        while len(queue) < 350:
            n = len(came)
            came[add(queue, int(sizes[n]), served + n * 1e-6)] = served
        batch = queue.take(token_budget=2048, run_cost=16)
        assert len(batch) * batch[-1].length <= 2048
        assert lengths(batch) == sorted(lengths(batch))
        served += len(batch)
        waited += [served - came[text] for text in batch if turn > 60]
    assert max(waited) < 2 * np.mean(waited)


def test_texts_of_one_request_are_taken_first_to_last():
    queue = WaitingTexts()
    texts = [add(queue, 100 - i // 4, 0.0) for i in range(300)]
    seen = []
    while queue:
        batch = queue.take(token_budget=2048, run_cost=16)
        assert min(texts, key=lambda text: (text in seen, text.number)) in batch
        seen += batch
    assert sorted(text.number for text in seen) == [text.number for text in texts]


def test_where_a_run_costs_much_more_texts_are_looked_at():
    queue = WaitingTexts()
    for i in range(1000):
        add(queue, 10, i * 0.001)
    assert len(queue.take(token_budget=100_000, run_cost=16)) == 64
    assert len(queue.take(token_budget=100_000, run_cost=1000)) == 800


def test_a_small_request_waits_for_one_run_of_large_ones_and_shares_none():
    queue = WaitingTexts()
    rows = [add(queue, 10, 0.0, large=True) for _ in range(300)]
    assert len(queue.take(token_budget=400, run_cost=16, large_budget=100)) == 10
    small = [add(queue, 10, 1.0) for _ in range(50)]
    assert queue.take(token_budget=400, run_cost=16, large_budget=100) == small[:40]
    # Those that came first are next, though small ones still wait.
    assert queue.take(token_budget=400, run_cost=16, large_budget=100) == rows[10:20]
    assert queue.take(token_budget=400, run_cost=16, large_budget=100) == small[40:]


def test_a_text_that_is_due_before_its_equal_runs_with_it():
    """The equal is due behind more texts than are looked at."""
    queue = WaitingTexts()
    for i in range(200):
        add(queue, 10, i * 1e-3)
    equal = add(queue, 10, 1.0, key="equal")
    urgent = add(queue, 10, 1.0, key="equal", deadline=0.5)
    add(queue, 10, 1.0)
    batch = queue.take(token_budget=2048, run_cost=16)
    assert equal in batch
    assert urgent in equal.all
