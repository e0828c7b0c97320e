"""Runs with bound buffers, on the CPU: onnxruntime takes the same calls there as on a card."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mirror_rt import BundleError, Encoder, Scheduler
from mirror_rt.inference import io_binding as binding_module
from rounding import NORM_ERROR, RUN_ERROR

TEXTS = ["the river", "a", "the old town hall by the river " * 3, "word", "river " * 100] * 8


@pytest.fixture(scope="module")
def expected(bundle):
    return Encoder.load(bundle, providers="cpu").encode(TEXTS)


def together(count, function, *arguments):
    """Call a function from several threads at a time."""
    with ThreadPoolExecutor(count) as threads:
        for call in [threads.submit(function, *arguments) for _ in range(count)]:
            call.result()


@pytest.mark.parametrize("size", [1, 1 << 14, 100_000, 3 << 20, 6_400_000, (1 << 25) + 1])
def test_little_is_copied_in_vain(bundle, size):
    """A large batch is not copied as the next power of two, and its buffers are kept."""
    session = Encoder.load(bundle, providers="cpu").pipeline.model.runner.session()
    buffers = binding_module._Buffers(session, ("cpu", 0))
    host, device = buffers._of_size(size)
    assert size <= host.nbytes <= max(1 << 14, size * 9 // 8)
    assert buffers._of_size(size)[1] is device
    buffers._of_size(200_000)
    assert buffers.capacity <= 1 << 25


@pytest.mark.parametrize("normalize", [True, False])
def test_bound_runs_give_what_runs_give(bundle, cards, normalize):
    encoder = Encoder.load(bundle, providers="cpu")
    assert encoder.devices == ["cuda:0"]
    plain = encoder.pipeline.model.runner.session()
    for batch_size in (1, 64, 2, 32):
        found = encoder.encode(TEXTS, batch_size=batch_size, normalize_embeddings=normalize)
        encoder.pipeline.model.runner._bound, bound = None, encoder.pipeline.model.runner._bound
        expected = encoder.encode(TEXTS, batch_size=batch_size, normalize_embeddings=normalize)
        encoder.pipeline.model.runner._bound = bound
        np.testing.assert_array_equal(found, expected)
    assert encoder.pipeline.model.runner.session() is plain


def test_buffers_are_used_again_and_bounded(bundle, cards, expected, monkeypatch):
    encoder = Encoder.load(bundle, providers="cpu")
    pool = encoder.pipeline.model.runner._bound
    encoder.encode(TEXTS[:4])  # one run
    (buffers,) = pool._free
    ((_, device),) = buffers._kept.values()
    address = device.data_ptr()
    found = encoder.encode(TEXTS[:4])
    np.testing.assert_allclose(found, expected[:4], atol=NORM_ERROR)
    assert pool._free == [buffers]
    ((_, device),) = buffers._kept.values()
    assert device.data_ptr() == address

    together(12, encoder.encode, TEXTS)
    assert 1 <= len(pool._free) <= 2
    monkeypatch.setattr(binding_module, "_KEEP_BYTES", 1)
    pool._free.clear()
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=NORM_ERROR)
    assert not pool._free


def test_two_runs_are_in_flight_on_a_card(bundle, cards, expected):
    encoder = Encoder.load(bundle, providers="cpu")
    session = encoder.pipeline.model.runner.session()
    meeting, left = threading.Barrier(2, timeout=300), threading.Semaphore(2)
    lock, now, most = threading.Lock(), [], []
    run = session.run_with_iobinding

    def meet(*arguments):
        with lock:
            now.append(1)
            most.append(len(now))
        if left.acquire(blocking=False):
            meeting.wait()  # until both run
        run(*arguments)
        with lock:
            now.pop()

    session.run_with_iobinding = meet
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=2), expected, atol=RUN_ERROR)
    assert max(most) == 2
    left.release(2)
    with Scheduler(encoder, token_budget=128) as scheduler:
        futures = [scheduler.submit(text) for text in TEXTS]
        assert all(future.result(60).embeddings.shape == (1, 32) for future in futures)
    together(6, encoder.encode, TEXTS)
    assert max(most) == 2  # whoever calls


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_run_without_memory_runs_again_alone(bundle, cards, expected, failures):
    """The second time alone, the arena is empty: what fails then is too large for the card."""
    encoder = Encoder.load(bundle, providers="cpu")
    session = encoder.pipeline.model.runner.session()
    run, lock, now, options = session.run_with_iobinding, threading.Lock(), [], []
    meeting = threading.Barrier(2, timeout=300)

    def fail(binding, run_options):
        with lock:
            now.append(1)
            number, beside = len(options), len(now)
            options.append(run_options)
        try:
            if number < 2:
                meeting.wait()  # one of them fails, the other one is in flight
            if run_options is not None:
                assert beside == 1
            if number == 0 or (run_options is not None and len(alone()) < failures):
                raise RuntimeError("Available memory of 7 is smaller than requested bytes of 8")
            run(binding, run_options)
        finally:
            with lock:
                now.pop()

    def alone():
        return [given for given in options if given is not None]

    session.run_with_iobinding = fail
    if failures == 3:
        with pytest.raises(BundleError, match=r"failed on cuda:0 .* Available memory of 7"):
            encoder.encode(TEXTS, batch_size=2)
    else:
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=2), expected, atol=RUN_ERROR)
    assert len(alone()) == min(failures, 2)
    for given in alone():
        assert given.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


def test_a_failed_bound_run_names_the_card_and_leaves_no_buffers(bundle, cards):
    from mirror_rt.tokens.padding import RaggedTokens

    encoder = Encoder.load(bundle, devices=[2])
    with pytest.raises(BundleError, match="failed on cuda:2 on 1 texts of 3 tokens"):
        encoder.pipeline.run(encoder.pipeline.pad(RaggedTokens.from_lists([[2, 10**6, 3]])))
    assert not encoder.pipeline.model.runner._bound._free
    assert encoder.encode("a").shape == (32,)
