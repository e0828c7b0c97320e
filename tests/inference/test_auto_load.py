"""The default engine under load: any number of threads and callers, quotas, forks, every family."""

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mirror_export.parity import GATES, check_parity
from mirror_rt import Encoder
from mirror_rt.bundle.families import FAMILIES
from mirror_rt.cpus import CpuBudget
from mirror_rt.inference.providers import NATIVE
from mirror_rt.inference.shared_libraries import nvidia_cards
from mirror_train import TorchEncoder
from tiers import tiers
from tiny_models import TINY

pytestmark = [
    pytest.mark.skipif(nvidia_cards() > 0, reason="auto takes the card"),
    pytest.mark.usefixtures("engine_is_fast"),
]

ROWS = [name for name, row in FAMILIES.items() if row.tensors is not None]


@pytest.fixture(scope="module")
def texts(words):
    generator = np.random.default_rng(11)
    return [" ".join(generator.choice(words, n)) for n in (1, 1, 2, 3, 5, 8, 13, 30, 60, 90) * 2]


@pytest.fixture(scope="module")
def expected(bundle, texts):
    return Encoder.load(bundle, threads=1).encode(texts)


@pytest.mark.parametrize("threads", tiers([1, 2, 3, 7, 16, 64], fast=(1, 3)))
def test_any_number_of_threads_gives_the_same(bundle, texts, expected, threads):
    """Most of them have no processor of their own here."""
    with Encoder.load(bundle, threads=threads) as encoder:
        assert encoder.providers == [NATIVE]
        for spinning in ("off", "run"):
            with Encoder.load(bundle, threads=threads, spinning=spinning) as other:
                np.testing.assert_array_equal(other.encode(texts), expected)
        np.testing.assert_array_equal(encoder.encode(texts, batch_size=1), expected)
        np.testing.assert_array_equal(encoder.encode(texts[-1]), expected[-1])


@pytest.mark.parametrize("threads", tiers([1, 8], fast=(8,)))
def test_32_callers_at_once(bundle, texts, expected, threads):
    start = threading.Barrier(32)

    def work(number):
        start.wait(60)
        order = np.random.default_rng(number).permutation(len(texts)).tolist()
        for i in order[:8]:
            np.testing.assert_array_equal(encoder.encode(texts[i]), expected[i])
        found = encoder.encode([texts[i] for i in order])
        np.testing.assert_array_equal(found, expected[order])

    with Encoder.load(bundle, threads=threads) as encoder, ThreadPoolExecutor(32) as callers:
        assert len(list(callers.map(work, range(32)))) == 32  # or the first error


@pytest.mark.parametrize(("quota", "threads"), [(2.0, 2), (0.5, 1)])
def test_a_quota_is_kept(bundle, texts, expected, monkeypatch, quota, threads):
    budget = CpuBudget(8, quota, "cpu.max")
    monkeypatch.setattr("mirror_rt.inference.load_options.cpu_budget", lambda: budget)
    with Encoder.load(bundle) as encoder:
        runner = encoder.pipeline.model.runner
        assert (runner._threads, runner._spins) == (threads, 0)  # spinning would use it up
        np.testing.assert_array_equal(encoder.encode(texts), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_is_forked_while_others_run(command_in_child, bundle):
    """A lock that another thread holds in the moment of the fork is held forever in the child."""
    out = command_in_child(
        "import os, sys, threading; import numpy as np; from mirror_rt import Encoder\n"
        f"encoder = Encoder.load({str(bundle)!r}, threads=3)\n"
        "texts = ['a river', 'the old town ' * 20, 'word'] * 4\n"
        "expected, stop = encoder.encode(texts), threading.Event()\n"
        "def work():\n"
        "    while not stop.is_set():\n"
        "        assert np.array_equal(encoder.encode(texts), expected)\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os._exit(0 if np.array_equal(encoder.encode(texts), expected) else 7)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "stop.set(); [thread.join() for thread in threads]\n"
        "assert np.array_equal(encoder.encode(texts), expected)\n"
        "print('well')",
        env=os.environ | {"TOKENIZERS_PARALLELISM": "true"},
    )
    assert out.strip() == "well"


def encode_there(encoder, texts, queue):
    queue.put((encoder.providers, encoder.encode(texts)))


@pytest.mark.full
def test_a_spawned_process_loads_it_again(bundle, texts, expected):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with Encoder.load(bundle, threads=2) as encoder:
        process = context.Process(target=encode_there, args=(encoder, texts, queue))
        process.start()
        providers, found = queue.get(timeout=600)
        process.join()
    assert providers == [NATIVE]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", tiers(ROWS, fast=("bert", "modernbert")))
def test_every_family_passes_the_gates_of_the_export(tiny_bundle, tiny_model, family, texts):
    """What is compared with PyTorch at export runs in onnxruntime, and by default in the engine."""
    reference = TorchEncoder.load(tiny_model(family), pooling=TINY[family].pooling)
    for precision in ("fp32", "int8"):
        with Encoder.load(tiny_bundle(family), providers=NATIVE, variant=precision) as encoder:
            assert check_parity(reference, encoder, texts, GATES[precision]).failures() == []
