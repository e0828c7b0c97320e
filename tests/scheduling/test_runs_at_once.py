"""A call that nothing else shares runs in the event loop's thread; many share the device's runs."""

import asyncio
import math
import threading

import numpy as np
import pytest

from mirror_rt import ClosedError, Encoder, Scheduler
from mirror_rt.scheduling import admission
from mirror_rt.scheduling.turns import Turns
from step_encoder import StepEncoder

CALM = admission._CALM


@pytest.fixture(autouse=True)
def a_moment_is_long(monkeypatch):
    """No timing decides: what a run takes here depends on the machine."""
    monkeypatch.setattr(admission, "_MOMENT", math.inf)


class Counted:
    """A scheduler of one device, and of every run whether it was in the loop, and its texts."""

    def __init__(self, encoder, **options):
        self.runs, self._counted = [], threading.Semaphore(0)
        self.scheduler = Scheduler(encoder, on_batch=self.count, **options)

    def count(self, report):
        here = threading.current_thread() is threading.main_thread()
        self.runs.append((here, len(report.tokens)))
        self._counted.release()

    def wait(self):
        """Wait for a run to be counted, which a device does after it gave the vector."""
        assert self._counted.acquire(timeout=60)

    async def call(self, text):
        vector = await self.scheduler.aencode(text)
        self.wait()
        return vector

    async def alone(self, calls):
        for i in range(calls):
            await self.call(f"text {i}")

    def take_runs(self):
        runs, self.runs = self.runs, []
        return runs


@pytest.fixture
def counted(bundle):
    counted = Counted(Encoder.load(bundle))
    yield counted
    counted.scheduler.close()


def test_after_some_calls_alone_they_run_in_the_loop_but_for_one_of_as_many(counted):
    asyncio.run(counted.alone(4 * CALM))
    here = [here for here, _ in counted.take_runs()]
    assert len(here) == 4 * CALM
    assert not any(here[:CALM])  # nobody knows yet who comes besides
    # While one of 32 runs in the device's thread, the loop would hear others.
    assert here[CALM:] == [i % CALM != 0 for i in range(CALM, 4 * CALM)]


def test_one_that_comes_while_another_is_open_ends_the_calm(counted):
    queue, intake = counted.scheduler._queue, counted.scheduler.intake

    def come():
        request = intake.request(["text"], None, {}, None)
        queue.admit(request, 1)
        return request

    asyncio.run(counted.alone(CALM + 2))
    assert queue.runs_at_once(1)
    first = come()
    assert not queue.runs_at_once(1)  # it would not run alone
    queue.end(come())
    queue.end(first)
    for _ in range(CALM):
        assert not queue.runs_at_once(1)
        queue.end(come())
    queue.end(come())
    assert queue.runs_at_once(1)


def test_vectors_and_errors_are_those_of_the_device(counted):
    async def main():
        first = await counted.call("the very text")
        await counted.alone(CALM)
        counted.take_runs()
        again = await counted.call("the very text")
        assert counted.take_runs() == [(True, 1)]
        np.testing.assert_array_equal(first, again)

    asyncio.run(main())


def test_a_failing_run_fails_its_call_alone():
    encoder = StepEncoder(held=False)
    counted = Counted(encoder)

    async def main():
        await counted.alone(CALM + 1)
        with pytest.raises(ValueError, match="failed on"):
            await counted.scheduler.aencode("x!")
        counted.wait()
        await counted.alone(1)

    asyncio.run(main())
    assert [here for here, _ in counted.take_runs()][-2:] == [True, True]
    counted.scheduler.close()


def test_long_texts_threads_and_runs_that_take_long_go_to_the_device(counted, monkeypatch):
    async def main():
        await counted.alone(CALM + 1)
        await counted.call("a " * 2000)
        assert not counted.take_runs()[-1][0]
        await counted.alone(1)
        assert counted.take_runs() == [(True, 1)]
        monkeypatch.setattr(admission, "_MOMENT", 0.0)
        await counted.alone(1)
        assert counted.take_runs() == [(False, 1)]

    asyncio.run(main())
    monkeypatch.setattr(admission, "_MOMENT", math.inf)
    counted.scheduler.encode("of a thread, which Ctrl-C may interrupt")
    counted.wait()
    assert not counted.take_runs()[-1][0]


def test_a_card_which_overlaps_runs_has_them_in_its_threads(bundle, monkeypatch):
    encoder = Encoder.load(bundle)
    monkeypatch.setattr(encoder.pipeline.model, "parallel_runs", 2)
    counted = Counted(encoder)
    asyncio.run(counted.alone(2 * CALM))
    assert not any(here for here, _ in counted.take_runs())
    counted.scheduler.close()


def test_where_another_model_had_a_turn_just_now_the_device_runs(bundle):
    turns = Turns(clock=lambda: 0.0)  # so that all that ran has run a moment ago
    first, second = (Counted(Encoder.load(bundle), turns=turns) for _ in range(2))

    async def main():
        await first.alone(CALM + 2)
        assert first.take_runs()[-1] == (True, 1)
        await second.alone(1)
        await first.alone(1)
        assert first.take_runs() == [(False, 1)]

    asyncio.run(main())
    for one in (first, second):
        one.scheduler.close()


def test_a_closed_scheduler_refuses_there_too(counted):
    async def main():
        await counted.alone(CALM + 1)
        counted.scheduler.close()
        with pytest.raises(ClosedError):
            await counted.scheduler.aencode("too late")

    asyncio.run(main())
