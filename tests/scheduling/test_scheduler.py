"""The scheduler against an encoder that runs when the test says so: no timing decides a test."""

import asyncio
import gc
import logging
import os
import threading
import weakref
from concurrent.futures import CancelledError, wait

import numpy as np
import pytest

from mirror_rt import (
    ClosedError,
    ConfigError,
    DeadlineError,
    Encoder,
    InvalidTextError,
    NonFiniteError,
    OverloadedError,
    Scheduler,
)
from rounding import ANY_BATCH, of_norms
from step_encoder import StepEncoder


@pytest.fixture
def scheduler(encoder):
    scheduler = Scheduler(encoder, token_budget=40, max_waiting_texts=20, max_waiting_tokens=200)
    yield scheduler
    encoder.free()
    scheduler.close(drain=False)


def plain(scheduler, text, **options):
    return scheduler.submit(text, normalize_embeddings=False, **options)


def vector(future):
    """The result for one string."""
    embeddings = future.result(60).embeddings
    assert len(embeddings) == 1
    return embeddings[0]


def test_an_idle_device_runs_at_once(encoder, scheduler, busy):
    assert encoder.batches == [["device"]]
    encoder.step()
    np.testing.assert_array_equal(vector(busy), [6, ord("d")])


def test_what_waits_runs_together_sorted_and_filled_to_the_budget(encoder, scheduler, busy):
    texts = ["aaaa", "b" * 30, "cccc", "dddd", "eee", "f" * 29, "gggg"]
    futures = [plain(scheduler, text) for text in texts]
    encoder.free()
    wait(futures, 60)
    assert encoder.batches[1:] == [["eee", "aaaa", "cccc", "dddd", "gggg"], ["b" * 30], ["f" * 29]]
    for text, future in zip(texts, futures, strict=True):
        np.testing.assert_array_equal(vector(future), [len(text), ord(text[0])])


def test_statistics(encoder, scheduler, busy):
    futures = [plain(scheduler, text) for text in ("aaaa", "bbb")]
    waiting = scheduler.statistics()
    assert (waiting.requests, waiting.waiting_texts, waiting.waiting_tokens) == (3, 2, 7)
    encoder.free()
    wait(futures, 60)
    done = scheduler.statistics()
    assert (done.batches, done.texts, done.tokens, done.padded_tokens) == (2, 3, 13, 14)
    assert done.padding == pytest.approx(1 / 14)
    assert done.texts_per_batch == 1.5
    assert done.waiting_texts == done.waiting_tokens == 0
    assert 0 < done.longest_queue_seconds <= done.queue_seconds


def test_on_batch_is_told_of_every_run_and_may_fail(encoder, caplog):
    reports = []

    def on_batch(report):
        reports.append(report)
        raise RuntimeError("no metrics today")

    encoder.free()
    with Scheduler(encoder, on_batch=on_batch) as scheduler, caplog.at_level(logging.ERROR):
        assert scheduler.encode("abc").shape == (2,)
        assert scheduler.encode("abcd").shape == (2,)
    assert [report.tokens for report in reports] == [[3], [4]]
    assert [report.padded_tokens for report in reports] == [3, 4]
    assert "on_batch of a Scheduler failed" in caplog.text


def test_options_of_a_call(encoder):
    encoder.free()
    with Scheduler(encoder) as scheduler:
        vectors = scheduler.encode(["abc", "de"])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=of_norms(2))
        plain = scheduler.encode(["abc", "de"], normalize_embeddings=False, truncate_dim=1)
        np.testing.assert_array_equal(plain, [[3], [2]])
        np.testing.assert_array_equal(scheduler.encode(["abc", "de"], truncate_dim=1), [[1], [1]])
        assert scheduler.encode([]).shape == (0, 2)
        assert scheduler.encode(["abc", "de"], precision="binary").dtype == np.int8
        scheduler.encode("abc", prompt="to: ")
        assert encoder.batches[-1] == ["to: abc"]
        info = scheduler.encode_with_info(["abc", "de"])
        assert info.token_counts.tolist() == [3, 2]
        assert info.embeddings.shape == (2, 2)
        tolerant = scheduler.encode(["abc", "", "a~"], errors="nan")
        assert np.isnan(tolerant).any(axis=1).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout must be above 0 seconds, or None, got 0"),
        ({"timeout": -1}, "timeout must be above 0"),
        ({"truncate_dim": 0}, r"truncate_dim must be in 1 .. 2, got 0"),
        ({"truncate_dim": 3}, r"truncate_dim must be in 1 .. 2, got 3"),
        ({"errors": "ignore"}, "errors must be"),
        ({"batch_size": 8}, "batch_size: the batches of a Scheduler are common to its callers"),
    ],
)
def test_bad_options(scheduler, options, message):
    with pytest.raises(ConfigError, match=message):
        scheduler.submit("a", **options)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(scheduler.aencode("a", **options))
    assert scheduler.statistics().waiting_texts == 0


@pytest.mark.parametrize("limit", ["token_budget", "max_waiting_texts", "max_waiting_tokens"])
def test_bad_limits(encoder, limit):
    with pytest.raises(ConfigError, match=f"{limit} must be at least 1, got 0"):
        Scheduler(encoder, **{limit: 0})
    with pytest.raises(ConfigError, match="at least one encoder"):
        Scheduler([])


def test_a_text_that_cannot_be_encoded_is_refused_and_leaves_no_room_taken(scheduler):
    with pytest.raises(InvalidTextError, match="item 1: the string is empty"):
        scheduler.submit(["a", ""])
    with pytest.raises(InvalidTextError, match="got int"):
        scheduler.submit(7)
    assert scheduler.statistics().waiting_texts == 0


def test_cancelled_texts_do_not_run_and_make_room(encoder, scheduler, busy):
    keep, drop = plain(scheduler, "keep"), plain(scheduler, ["drop", "drop2"])
    assert drop.cancel()
    assert scheduler.statistics().waiting_texts == 1
    assert scheduler.statistics().cancelled == 2
    encoder.free()
    keep.result(60)
    with pytest.raises(CancelledError):
        drop.result()
    assert encoder.batches == [["device"], ["keep"]]


def test_a_running_text_may_be_cancelled_too(encoder, scheduler, busy):
    assert busy.cancel()
    encoder.step()
    after = plain(scheduler, "after")
    encoder.step()
    np.testing.assert_array_equal(vector(after), [5, ord("a")])


def test_a_deadline_that_passed_is_an_error_and_its_text_does_not_run(
    encoder, scheduler, busy, monkeypatch
):
    late, fine = plain(scheduler, "late", timeout=5), plain(scheduler, "fine", timeout=500)
    import time

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 50)
    encoder.free()
    fine.result(60)
    with pytest.raises(DeadlineError, match="no vector within 5 s"):
        late.result(60)
    assert encoder.batches == [["device"], ["fine"]]
    assert scheduler.statistics().expired == 1


def test_encode_gives_up_at_its_deadline(encoder, scheduler, busy):
    with pytest.raises(DeadlineError, match=r"no vector within 0.01 s"):
        scheduler.encode("late", timeout=0.01)
    assert scheduler.statistics().waiting_texts == 0
    encoder.step()
    busy.result(60)
    assert encoder.batches == [["device"]]


def test_too_many_texts_are_refused_and_say_when_to_come_back(encoder, scheduler, busy):
    futures = [plain(scheduler, "a") for _ in range(20)]
    with pytest.raises(OverloadedError, match="20 texts wait, of at most 20; try again") as caught:
        plain(scheduler, "b")
    assert caught.value.retry_after is None  # nothing has run yet
    assert scheduler.statistics().refused == 1
    encoder.step()
    assert encoder.began.acquire(timeout=60)
    futures += [plain(scheduler, "a") for _ in range(20)]
    with pytest.raises(OverloadedError) as caught:
        plain(scheduler, "b")
    assert caught.value.retry_after > 0
    encoder.free()
    assert all(future.result(60) is not None for future in futures)


def test_too_many_tokens_are_refused(encoder, scheduler, busy):
    plain(scheduler, "a" * 150)
    with pytest.raises(OverloadedError, match="150 tokens wait, of at most 200"):
        plain(scheduler, "b" * 60)
    plain(scheduler, "b" * 50)


def test_a_call_that_can_never_wait_says_so(scheduler):
    with pytest.raises(ConfigError, match="21 texts in one call, and at most 20 may wait"):
        scheduler.submit(["a"] * 21)
    with pytest.raises(ConfigError, match="201 tokens in one call, and at most 200 may wait"):
        scheduler.submit("a" * 201)
    assert scheduler.statistics().waiting_texts == 0


def test_a_failing_text_fails_alone(encoder, scheduler, busy):
    texts = ["aaa", "bbb", "cc!", "ddd", "eee", "fff", "ggg"]
    futures = [plain(scheduler, text) for text in texts]
    encoder.free()
    wait(futures, 60)
    for text, future in zip(texts, futures, strict=True):
        if "!" in text:
            with pytest.raises(ValueError, match=r"failed on \['cc!'\]"):
                future.result()
        else:
            np.testing.assert_array_equal(vector(future), [3, ord(text[0])])
    assert encoder.batches[1] == texts
    assert len(encoder.batches) - 1 <= 1 + 2 * 3  # halved, not one by one
    assert scheduler.statistics().failed == 1


def test_a_text_without_a_finite_vector_fails_alone(encoder, scheduler, busy):
    futures = [plain(scheduler, text) for text in ("aaa", "bb~", "ccc")]
    encoder.free()
    wait(futures, 60)
    with pytest.raises(NonFiniteError, match="item 0: the model gives it no finite vector"):
        futures[1].result()
    np.testing.assert_array_equal(vector(futures[2]), [3, ord("c")])
    assert len(encoder.batches) == 2


def test_close_runs_what_waits(encoder, scheduler, busy):
    futures = [plain(scheduler, "abc"), plain(scheduler, "de")]
    encoder.free()
    scheduler.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(ClosedError, match="this Scheduler is closed"):
        scheduler.submit("a")
    with pytest.raises(ClosedError, match="this Scheduler is closed"):
        asyncio.run(scheduler.aencode("a"))
    assert not scheduler.running
    scheduler.close()


def test_close_without_drain_fails_what_waits(encoder, scheduler, busy):
    future = plain(scheduler, "abc")
    closing = threading.Thread(target=scheduler.close, kwargs={"drain": False})
    closing.start()
    with pytest.raises(ClosedError, match="closed before this text ran"):
        future.result(60)
    encoder.free()
    closing.join(60)
    assert busy.result(60) is not None  # what ran, ran to its end
    assert encoder.batches == [["device"]]


def test_close_gives_up_on_what_waits_after_a_time(encoder, scheduler, busy):
    future = plain(scheduler, "abc")
    closing = threading.Thread(target=scheduler.close, kwargs={"timeout": 0.01})
    closing.start()
    with pytest.raises(ClosedError):
        future.result(60)
    encoder.free()
    closing.join(60)


def test_a_block_that_fails_does_not_run_what_waits(encoder):
    with pytest.raises(KeyError), Scheduler(encoder) as scheduler:
        scheduler.submit("device")
        assert encoder.began.acquire(timeout=60)
        future = scheduler.submit("abc")
        encoder.free()
        raise KeyError
    assert encoder.batches[0] == ["device"]
    assert future.done()


def test_two_devices_run_at_the_same_time(encoder):
    other = StepEncoder()
    scheduler = Scheduler([encoder, other], token_budget=4)
    futures = [plain(scheduler, text) for text in ("aaaa", "bbbb")]
    assert encoder.began.acquire(timeout=60)
    assert other.began.acquire(timeout=60)
    encoder.free()
    other.free()
    for text, future in zip(("aaaa", "bbbb"), futures, strict=True):
        np.testing.assert_array_equal(vector(future), [4, ord(text[0])])
    scheduler.close()


@pytest.mark.parametrize(("text", "aside"), [("abc", False), ("a" * 2000, True)])
def test_a_task_waits_without_blocking_the_event_loop(encoder, text, aside):
    scheduler = Scheduler(encoder)

    async def main():
        task = asyncio.create_task(scheduler.aencode(text, normalize_embeddings=False))
        await asyncio.to_thread(encoder.began.acquire, timeout=60)  # the loop goes on meanwhile
        assert not task.done()
        encoder.step()
        return await task

    np.testing.assert_array_equal(asyncio.run(main()), [len(text), ord("a")])
    scheduler.close()
    # What takes a moment is tokenised in a thread; handing over what is short takes longer.
    assert (threading.main_thread() not in encoder.pipeline.tokenizer.threads) == aside


def test_tasks_get_the_errors_of_threads(encoder, scheduler, busy):
    with pytest.raises(InvalidTextError, match="item 0: the string is empty"):
        asyncio.run(scheduler.aencode([""]))
    plain(scheduler, ["a"] * 20)
    with pytest.raises(OverloadedError):
        asyncio.run(scheduler.aencode("b"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_is_told_to_make_its_own(command_in_child, bundle):
    out = command_in_child(
        "import os; from mirror_rt import ClosedError, Encoder, Scheduler\n"
        f"scheduler = Scheduler(Encoder.load({str(bundle)!r}))\n"
        "scheduler.encode('a')\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        scheduler.encode('a')\n"
        "    except ClosedError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait(); scheduler.close()\n"
    )
    assert "belongs to process" in out
    assert "make one there" in out


def test_an_open_scheduler_does_not_hang_the_interpreter(command_in_child, bundle):
    command_in_child(
        "from mirror_rt import Encoder, Scheduler\n"
        f"scheduler = Scheduler(Encoder.load({str(bundle)!r}))\n"
        "scheduler.submit(['a'] * 100)\n"
    )


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_64_callers_get_the_vectors_of_the_offline_path(bundle, words, kind):
    encoder = Encoder.load(bundle)
    texts = [" ".join(words[i : i + 1 + i % 17]) for i in range(64)]
    expected = encoder.encode(texts)
    with Scheduler(encoder) as scheduler:
        assert scheduler.running
        if kind == "threads":
            results = [None] * 64
            barrier = threading.Barrier(64)

            def call(i):
                barrier.wait()
                results[i] = scheduler.encode(texts[i])

            threads = [threading.Thread(target=call, args=(i,)) for i in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:

            async def main():
                return await asyncio.gather(*(scheduler.aencode(text) for text in texts))

            results = asyncio.run(main())
        assert scheduler.statistics().texts == 64
    np.testing.assert_allclose(np.array(results), expected, atol=ANY_BATCH)


def test_a_run_that_is_done_before_its_call_is_accepted(encoder, monkeypatch):
    """The device may be quicker than the caller's thread."""
    scheduler = Scheduler(encoder)
    put = scheduler._queue.put

    def put_and_run(request, rows, **options):
        put(request, rows, **options)
        encoder.free()
        assert request.future.result(60) is not None

    monkeypatch.setattr(scheduler._queue, "put", put_and_run)
    assert scheduler.submit("abc", normalize_embeddings=False).done()
    scheduler.close()


INTERRUPTED = """
import signal, sys, threading
import numpy as np
from mirror_rt import Encoder, ReentrantCallError, Scheduler

encoder = Encoder.load({bundle!r}, threads=1)
scheduler = Scheduler(encoder)
expected = encoder.encode(["call", "handler"])
FILES = ("mirror_rt/", "concurrent/futures/_base.py", "/threading.py")
line, at, outcomes = 0, 0, set()

def handle(*_):
    try:
        np.testing.assert_allclose({call}("handler"), expected[1], atol={error})
        outcomes.add("encoded")
    except ReentrantCallError:
        outcomes.add("refused")

def trace(frame, event, _):
    global line
    if not any(part in frame.f_code.co_filename for part in FILES):
        return None
    line += event == "line"
    if line == at:
        line += 1
        signal.raise_signal(signal.SIGUSR1)
    return trace

signal.signal(signal.SIGUSR1, handle)
while line >= at:
    at, line = at + 1, 0
    sys.settrace(trace)
    vector = {call}("call")
    sys.settrace(None)
    np.testing.assert_allclose(vector, expected[0], atol={error})
scheduler.close()
print(at > 30, sorted(outcomes))
"""


@pytest.mark.parametrize(
    ("call", "outcomes"),
    [
        ("scheduler.encode", ["encoded", "refused"]),
        ("encoder.encode", ["encoded"]),
        ("(lambda text: encoder.encode([text])[0])", ["encoded"]),
    ],
)
def test_a_signal_at_any_line_of_a_call(command_in_child, bundle, call, outcomes):
    """Its handler calls again: it gets its vector or an error, and the call goes on; none waits."""
    found = command_in_child(INTERRUPTED.format(bundle=str(bundle), call=call, error=ANY_BATCH))
    assert found == f"True {outcomes}\n"


def test_ctrl_c_does_not_leave_a_call_in_progress(command_in_child, bundle):
    code = INTERRUPTED.format(bundle=str(bundle), call="scheduler.encode", error=ANY_BATCH)
    code = code.replace("mirror_rt/", "mirror_rt/scheduling/intake.py").replace("> 30", "> 1")
    code = code.replace("_base.py", "none").replace("/threading.py", "none")
    code = code.replace("try:", "raise KeyboardInterrupt\n    try:")
    code = code.replace(
        '    vector = scheduler.encode("call")\n    sys.settrace(None)\n',
        '    try:\n        scheduler.encode("call")\n'
        '    except KeyboardInterrupt:\n        outcomes.add("interrupted")\n'
        '    sys.settrace(None)\n    vector = scheduler.encode("call")\n',
    )
    assert command_in_child(code) == "True ['interrupted']\n"


def test_what_nobody_holds_is_freed(bundle):
    """Encoders, and schedulers that nobody closed, with callers' methods told of every run."""

    class Owner:
        def __init__(self):
            self.encoder = Encoder.load(bundle, threads=1)
            self.scheduler = Scheduler(self.encoder, on_batch=self.count)
            self.batches, self.counted = 0, threading.Event()

        def count(self, report):
            self.batches += 1
            self.counted.set()

    before = set(threading.enumerate())
    owners = [Owner() for _ in range(3)]
    for owner in owners:
        owner.scheduler.encode("a")
        owner.counted.wait(60)
        assert owner.batches == 1
    held = [weakref.ref(kept) for owner in owners
            for kept in (owner, owner.encoder, owner.scheduler)]  # fmt: skip
    del owner, owners
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    thread = None  # which holds its scheduler; there is none if all had ended already
    gc.collect()
    assert [kept() for kept in held] == [None] * 9


def test_a_scheduler_that_nobody_holds_runs_what_waits(encoder):
    future = Scheduler(encoder).submit("abc", normalize_embeddings=False)
    gc.collect()
    encoder.free()
    assert vector(future).tolist() == [3, ord("a")]


def test_a_close_with_a_timeout_runs_the_texts_that_wait():
    scheduler = Scheduler(StepEncoder(held=False))
    futures = [scheduler.submit(f"text {i}") for i in range(9)]
    scheduler.close(timeout=60)
    assert all(future.result(0).embeddings.shape[0] == 1 for future in futures)
