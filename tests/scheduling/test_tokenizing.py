"""Tokenising is work: it is forecast and bounded, and it takes no room of the model."""

import asyncio
import threading

import pytest

from mirror_rt import OverloadedError, Scheduler
from mirror_rt.scheduling.admission import TokenizerLoad
from mirror_rt.scheduling.requests import Tokenizing
from step_encoder import StepEncoder


@pytest.fixture
def encoder():
    encoder = StepEncoder(held=False)
    yield encoder
    encoder.free()


@pytest.fixture
def scheduler(encoder):
    scheduler = Scheduler(encoder, max_waiting_texts=4000, max_waiting_tokens=10**7, max_wait=1.0)
    yield scheduler
    scheduler.close(drain=False)


@pytest.fixture
def held(encoder, monkeypatch):
    """The tokenizer begins, and goes on when the test says so."""
    began, free = threading.Event(), threading.Event()
    tokenize = encoder.pipeline.tokenize

    def wait(*arguments):
        began.set()
        assert free.wait(60)
        return tokenize(*arguments)

    monkeypatch.setattr(encoder.pipeline, "tokenize", wait)
    yield began, free
    free.set()


def admitted(scheduler, texts, work="show"):
    request = scheduler.intake.request(texts, None, {}, None, runs=work == "tokenize")
    scheduler.intake.admit(request, work)
    return request


def test_a_forecast_of_each_kind():
    load = TokenizerLoad()
    show, join = Tokenizing("show", 100, long=True), Tokenizing("join", 100, long=True)
    assert load.seconds(show) == 0
    load.learn("show", 10, 1.0)
    assert load.seconds(show) == pytest.approx(10)
    assert load.seconds(join) == pytest.approx(10)  # as slow as the slowest that was seen
    load.learn("join", 10, 0.1)
    assert load.seconds(join) == pytest.approx(1)
    load.count(show, 50)
    assert load.before(join) == pytest.approx(5)
    assert load.before(Tokenizing("show", 1, long=False)) == 0
    load.count(show, 0)
    assert load.before(join) == 0


@pytest.mark.parametrize("work", ["show", "join", "shorten", "tokenize"])
def test_what_waits_for_the_tokenizer_is_foretold(work, scheduler):
    """Of each kind of work: with ten seconds before it a request is refused at once."""
    queue, texts = scheduler.intake.queue, ["a" * 1000] * 1000
    queue.admission.tokenizing.learn(work, 100_000, 1.0)
    first = admitted(scheduler, texts, work)
    with pytest.raises(OverloadedError, match="the waiting work takes 10 s") as caught:
        admitted(scheduler, texts, work)
    assert caught.value.retry_after == pytest.approx(10)
    short = Tokenizing(work, 1, long=False)  # which another thread tokenises
    assert queue.admission.tokenizing.before(short) == 0
    queue.tokenized(first, 950_000, 9.5)
    second = admitted(scheduler, texts, work)
    for request in (first, second):
        queue.end(request)
    assert queue.admission.tokenizing.before(Tokenizing(work, 1, long=True)) == 0


def test_a_deadline_counts_the_tokenizer(scheduler):
    queue, texts = scheduler.intake.queue, ["a" * 1000] * 1000
    queue.admission.tokenizing.learn("tokenize", 2_000_000, 1.0)
    first = admitted(scheduler, texts, "show")  # half a second
    with pytest.raises(OverloadedError):
        asyncio.run(scheduler.aencode(texts, timeout=0.9))
    queue.end(first)


def test_what_is_only_tokenised_takes_no_room_of_the_model(scheduler):
    """Four times as many texts as may wait, and none of them waits for the model."""
    requests = [admitted(scheduler, ["a"] * 4000) for _ in range(4)]
    assert scheduler.statistics().waiting_texts == scheduler.statistics().waiting_tokens == 0
    assert len(scheduler.encode(["b"] * 3000)) == 3000
    for request in requests:
        scheduler.intake.queue.end(request)


def test_large_requests_leave_room_for_small_ones(scheduler, held):
    began, free = held

    async def main():
        large = [asyncio.create_task(scheduler.aencode(["a" * 100] * 1000)) for _ in range(4)]
        await asyncio.to_thread(began.wait, 60)
        small = asyncio.create_task(scheduler.aencode(["b"] * 20))  # for the other thread
        late = asyncio.create_task(scheduler.aencode(["a" * 100] * 1000))
        with pytest.raises(OverloadedError, match="4020 texts wait, of at most 4000"):
            await late
        free.set()
        assert len(await small) == 20
        for one in large:
            assert len(await one) == 1000

    asyncio.run(main())


def test_what_waits_for_its_client_is_no_work(scheduler):
    queue = scheduler.intake.queue
    queue.admission.tokenizing.learn("tokenize", 100_000, 1.0)
    whole = admitted(scheduler, ["a" * 1000] * 1000, "tokenize")
    counted = scheduler.statistics()
    assert counted.waiting_texts == 1000
    with queue.uncounted(whole):
        unread = scheduler.statistics()
        assert unread.waiting_texts == unread.waiting_tokens == 0
        queue.end(admitted(scheduler, ["a" * 1000] * 1000, "tokenize"))
    after = scheduler.statistics()
    assert after.waiting_texts == 1000
    assert after.waiting_tokens == counted.waiting_tokens
    with queue.uncounted(whole):
        queue.end(whole)
    assert scheduler.statistics().waiting_texts == 0


def test_a_scheduler_that_refuses_everybody_says_so(scheduler, monkeypatch):
    queue, texts = scheduler.intake.queue, ["a"] * 4000
    assert scheduler.refusing() is None
    held = queue.admission
    for _ in range(2):
        monkeypatch.setitem(held._texts, False, 4000)
        with pytest.raises(OverloadedError):
            scheduler.encode(texts)
        seconds, why = scheduler.refusing()
        assert seconds >= 0
        assert "4000 texts wait, of at most 4000" in why
        monkeypatch.setitem(held._texts, False, 0)
        assert scheduler.refusing() is None  # it would let somebody in
        assert scheduler.encode("a") is not None
