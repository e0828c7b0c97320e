"""Who is let in, in which order requests end, and what becomes of those that are too late."""

import asyncio
import itertools
import time
from concurrent.futures import wait

import pytest

from mirror_rt import DeadlineError, InvalidTextError, OverloadedError, Scheduler
from mirror_rt.scheduling import BatchReport

_NUMBERS = itertools.count()


def distinct(n=40):
    """Texts of 10 tokens, unlike all others: of 400 tokens 80 are queued at a time."""
    return [f"{next(_NUMBERS):010}" for _ in range(n)]


@pytest.fixture
def clock(monkeypatch):
    """The seconds that `time.monotonic` says."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def scheduler(encoder):
    """A scheduler of a device that takes 40 tokens a second, as far as it knows."""
    scheduler = Scheduler(
        encoder, token_budget=40, max_waiting_texts=10_000, max_waiting_tokens=10**6, max_wait=60.0
    )
    queue = scheduler.intake.queue
    queue.learn(BatchReport([10_000], 10_000, [], 250.0, failed=False), time.monotonic())
    yield scheduler
    encoder.free()
    scheduler.close(drain=False)


def plain(scheduler, texts, **options):
    return scheduler.submit(texts, normalize_embeddings=False, **options)


def test_large_calls_end_in_the_order_in_which_they_came(encoder, scheduler, busy):
    texts = [[f"{name}{i:09}" for i in range(40)] for name in "abc"]
    futures = [plain(scheduler, given) for given in texts]
    encoder.free()
    wait(futures, 60)
    ran = [text[0] for batch in encoder.batches[1:] for text in batch]
    assert ran == sorted(ran)
    assert len(ran) == 120


def test_a_small_call_waits_for_a_share_of_a_large_one(encoder, scheduler, busy):
    large, small = plain(scheduler, distinct(200)), plain(scheduler, "small")
    encoder.free()
    small.result(60)
    large.result(60)
    at = next(i for i, batch in enumerate(encoder.batches) if "small" in batch)
    assert at <= 4  # of 51 batches
    assert len(encoder.batches) > 50


def test_all_that_is_admitted_counts(encoder, scheduler, busy):
    """What is with the tokenizer, what waits for its turn, what is queued and what runs."""
    assert plain(scheduler, distinct()) is not None  # ten seconds
    assert plain(scheduler, distinct(200)) is not None  # fifty more: what is before it takes ten
    with pytest.raises(OverloadedError, match="the waiting work takes") as caught:
        plain(scheduler, distinct())
    assert 55 < caught.value.retry_after < 65
    # A small one overtakes what waits for its turn.
    assert plain(scheduler, "small") is not None
    held = scheduler.statistics()
    assert held.waiting_tokens == 6 * 400 + len("small")
    assert 55 < held.waiting_seconds < 65


def test_texts_with_the_tokenizer_count(encoder, scheduler, monkeypatch):
    """A burst that comes before the first text is tokenised is not let in as a whole."""
    submitted = []
    monkeypatch.setattr(scheduler.intake._short, "submit", submitted.append)
    monkeypatch.setattr(scheduler.intake._long, "submit", submitted.append)

    async def main():
        tasks = [asyncio.create_task(scheduler.aencode(distinct(400))) for _ in range(20)]
        while sum(task.done() for task in tasks) + len(submitted) < len(tasks):
            await asyncio.sleep(0)
        done = {task for task in tasks if task.done()}
        pending = set(tasks) - done
        assert {type(task.exception()) for task in done} == {OverloadedError}
        assert len(pending) == len(submitted) < 5
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)

    asyncio.run(main())
    assert scheduler.statistics().waiting_tokens == scheduler.statistics().waiting_texts == 0


def test_a_call_that_cannot_be_answered_in_time_is_refused_at_once(scheduler, busy):
    assert plain(scheduler, distinct(80), timeout=30) is not None  # nothing waits: it may try
    with pytest.raises(OverloadedError) as caught:
        plain(scheduler, distinct(), timeout=25)
    assert caught.value.retry_after == pytest.approx(20, abs=2)
    assert plain(scheduler, distinct(), timeout=40) is not None


def test_nobody_is_told_to_come_back_later_than_a_deadline(clock, scheduler, busy):
    """A text of many chunks that is not done by its deadline takes no more of anybody's time."""
    large = plain(scheduler, "word " * 100_000, on_too_long="chunk", timeout=90)
    assert scheduler.statistics().waiting_tokens > 100_000
    assert plain(scheduler, "small") is not None
    with pytest.raises(OverloadedError) as caught:
        plain(scheduler, distinct())
    assert caught.value.retry_after == 90
    clock[0] += 20
    with pytest.raises(OverloadedError) as caught:
        plain(scheduler, distinct())
    assert caught.value.retry_after == 70
    large.cancel()
    assert scheduler.statistics().waiting_tokens == len("small")
    assert plain(scheduler, distinct()) is not None


@pytest.mark.parametrize("texts", [distinct(400), ["late"]])
def test_what_is_too_late_does_not_run(encoder, scheduler, busy, texts):
    with pytest.raises(DeadlineError, match=r"no vector within 0.2 s"):
        asyncio.run(scheduler.aencode(texts, timeout=0.2))
    after = scheduler.statistics()
    assert after.waiting_texts == after.waiting_tokens == 0
    assert after.expired == len(texts)
    fine = plain(scheduler, "fine")
    encoder.free()
    fine.result(60)
    assert encoder.batches == [["device"], ["fine"]]


def test_a_turn_that_comes_too_late_is_skipped(encoder, clock, scheduler, busy):
    """Nobody waits for this future, so that the device finds out."""
    first, late = (
        plain(scheduler, distinct()),
        plain(scheduler, [f"z{i}" for i in range(400)], timeout=500),
    )
    clock[0] += 1000
    encoder.free()
    first.result(60)
    with pytest.raises(DeadlineError):
        late.result(60)
    assert not any(text[0] == "z" for batch in encoder.batches for text in batch)


def test_steps_of_the_tokenizer_are_joined(encoder, monkeypatch):
    """A call of several steps gives what one step gives, and names all bad texts."""
    encoder.free()
    texts = [f"text {i}" * (i % 7 + 1) for i in range(100)] + ["word " * 700]
    given = {"normalize_embeddings": False, "on_too_long": "chunk"}
    with Scheduler(encoder) as scheduler:
        whole = scheduler.encode_with_info(texts, **given)
        monkeypatch.setattr("mirror_rt.scheduling.intake._STEP_TEXTS", 7)
        joined = scheduler.encode_with_info(texts, **given)
        for name in ("embeddings", "token_counts", "chunks", "truncated"):
            assert (getattr(whole, name) == getattr(joined, name)).all()
        bad = [*texts[:20], "", *texts[:20], " ", 5]
        with pytest.raises(InvalidTextError) as caught:
            asyncio.run(scheduler.aencode(bad))
        assert [i for i, _ in caught.value.items] == [20, 41, 42]
        tolerant = scheduler.encode_with_info(bad, errors="zero")
        assert (tolerant.embeddings[[20, 41, 42]] == 0).all()
        assert tolerant.token_counts[[19, 21]].tolist() == [len(texts[19]), len(texts[0])]


def test_tokens_are_estimated_from_what_was_seen(encoder):
    encoder.free()
    with Scheduler(encoder) as scheduler:
        estimate = scheduler.intake.queue.admission.estimate
        for _ in range(30):
            scheduler.encode("a text of some sixty characters, which are as many tokens here")
        request = scheduler.intake.request(["b" * 500, "c" * 5000], None, {}, None)
        assert 1400 < estimate.tokens(request) <= 1500  # the second is cut at 1,000
        request = scheduler.intake.request([[1, 2, 3], [4]], None, {}, None)
        assert estimate.tokens(request) == 4
