"""What a run may take while others wait for it, and lookups, which wait for nobody."""

import asyncio
import threading
import time

import pytest

from mirror_rt import Scheduler
from mirror_rt.scheduling import BatchReport, Turns
from server_process import until
from step_encoder import StepEncoder

BUDGET = 2000
BRIEF = 10 * 16  # tokens: as many fixed costs of a run as make it worth its turn


def texts(name, n, length=20):
    return [f"{name}{i:0{length - len(name)}}" for i in range(n)]


def make(encoder, turns=None):
    """A scheduler of a device of which a whole run takes more than half a second."""
    scheduler = Scheduler(encoder, token_budget=BUDGET, max_waiting_tokens=10**6, turns=turns)
    report = BatchReport([3000], 3000, [], 1.0, failed=False)
    queue = scheduler.intake.queue
    queue.learn(report, time.monotonic())
    queue.admission.pace.add = lambda *_: None  # whatever the runs of the test take
    return scheduler


@pytest.fixture
def encoders():
    made = [StepEncoder() for _ in "ab"]
    yield made
    for encoder in made:
        encoder.free()


def submit(scheduler, given):
    return scheduler.submit(given, normalize_embeddings=False)


def began(encoder):
    assert encoder.began.acquire(timeout=60)


def tokens(batch):
    return sum(map(len, batch))


def test_a_run_is_brief_while_another_model_has_something_to_run(encoders):
    (a, b), turns = encoders, Turns()
    with make(a, turns) as heavy, make(b, turns) as light:
        futures = [submit(heavy, texts("a", 400))]
        began(a)  # nobody else has come: the first run is a whole one
        futures.append(submit(light, "light"))
        until(lambda: light._share.waiting)
        a.free()
        began(b)
        b.free()
        for future in futures:
            future.result(60)
    first, *others = map(tokens, a.batches)
    assert first > BUDGET // 2
    assert others
    assert max(others) <= BRIEF


def test_a_model_that_is_alone_has_whole_runs(encoders):
    (a, b), turns = encoders, Turns()
    a.free()
    with make(a, turns) as heavy, make(b, turns):
        submit(heavy, texts("a", 500)).result(60)
    assert max(map(tokens, a.batches)) > BUDGET // 2


def test_a_small_request_waits_for_a_brief_run_of_a_large_one(encoders):
    a = encoders[0]
    with make(a) as scheduler:
        large = submit(scheduler, texts("a", 1000))
        began(a)
        small = submit(scheduler, ["first"])
        a.free()
        small.result(60)
        second = submit(scheduler, ["second"])
        second.result(60)
        large.result(60)
    whole, *others = a.batches
    assert others[0] == ["first"]  # behind the run that was in flight, and with no other text
    assert ["second"] in others
    assert tokens(whole) > BUDGET // 2
    assert max(map(tokens, others)) <= BRIEF


def test_a_lookup_waits_for_no_turn(encoders):
    """A model that looks up its vectors runs while another one has the only turn."""
    (a, b), turns = encoders, Turns()
    b.pipeline.model.looks_up = True
    b.free()
    with make(a, turns) as heavy, make(b, turns) as static:
        held = submit(heavy, "held")
        began(a)
        assert submit(static, "a text").result(60) is not None
        assert not held.done()
        a.free()


def test_a_lookup_of_a_few_texts_waits_for_no_thread():
    """It is over when the call is; whoever gets its report may ask for the statistics."""
    encoder, counts, threads = StepEncoder(held=False), [], []
    encoder.pipeline.model.looks_up = True

    def on_batch(report):
        threads.append(threading.current_thread())
        counts.append(scheduler.statistics().texts)

    with Scheduler(encoder, token_budget=BUDGET, on_batch=on_batch) as scheduler:
        assert submit(scheduler, ["a text", "!"]).exception() is not None
        assert submit(scheduler, ["a text", "another"]).done()
        many = submit(scheduler, texts("a", 1000))  # what is more than a run, its own thread runs
        assert len(many.result(60).embeddings) == 1000
        aside = asyncio.run(scheduler.aencode(texts("b", 1000), normalize_embeddings=False))
        assert len(aside) == 1000
    assert counts[-1] == 2003
    assert {threads[0], threads[-1]} == {threading.current_thread(), *scheduler._devices}


def test_static_encoders_look_up(static_bundle, bundle):
    from mirror_rt import Encoder

    for folder, expected in ((static_bundle, True), (bundle, False)):
        with Encoder.load(folder, threads=1) as encoder:
            assert encoder.pipeline.model.looks_up is expected
