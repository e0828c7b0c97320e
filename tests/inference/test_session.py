import os
import threading
from pathlib import Path

import numpy as np
import pytest

from damage import add_variant, spoil_token
from mirror_rt import BundleError, ClosedError, ConfigError, Encoder, NonFiniteError, Scheduler
from mirror_rt.cpus import CpuBudget
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.tokens.padding import RaggedTokens
from rounding import NORM_ERROR, RUN_ERROR
from tiers import tiers

TEXTS = ["the river", "a", "the old town hall by the river", "word"] * 8


@pytest.fixture(scope="module")
def onnxruntime():
    import onnxruntime

    return onnxruntime


@pytest.fixture
def quota(monkeypatch):
    """Let the process find a CPU quota of two processors, of eight."""
    budget = CpuBudget(8, 2.0, "cpu.max")
    monkeypatch.setattr("mirror_rt.inference.load_options.cpu_budget", lambda: budget)


def spinning(options):
    try:
        return options.get_session_config_entry("session.intra_op.allow_spinning") != "0"
    except RuntimeError:  # the entry is not set
        return True


def stops_after_the_run(options):
    try:
        return options.get_session_config_entry("session.force_spinning_stop") == "1"
    except RuntimeError:
        return False


def test_threads_come_from_the_quota(onnxruntime, quota):
    assert LoadOptions().session_options(onnxruntime).intra_op_num_threads == 2
    assert LoadOptions(threads=5).session_options(onnxruntime).intra_op_num_threads == 5


def test_spinning(onnxruntime, monkeypatch):
    monkeypatch.setattr("mirror_rt.inference.load_options.cpu_budget", lambda: CpuBudget(8))
    found = {
        how: (spinning(options), stops_after_the_run(options))
        for how in (None, "off", "run", "always")
        if (options := LoadOptions(spinning=how).session_options(onnxruntime))
    }
    assert found == {
        None: (True, True),
        "off": (False, False),
        "run": (True, True),
        "always": (True, False),
    }


def test_no_spinning_under_a_quota(onnxruntime, quota):
    assert not spinning(LoadOptions().session_options(onnxruntime))
    assert spinning(LoadOptions(spinning="always").session_options(onnxruntime))


class Held:
    """A session that says when it runs, and waits."""

    def __init__(self, session):
        self.began, self.free, self._session = threading.Event(), threading.Event(), session

    def run(self, *arguments):
        self.began.set()
        assert self.free.wait(60)
        return self._session.run(*arguments)


def test_runs_beside_another_do_not_spin(bundle):
    with Encoder.load(bundle, providers="cpu", threads=2, spinning="run") as encoder:
        expected = encoder.encode(TEXTS)
        graph = encoder.pipeline.model.runner
        assert graph._sleeping is None
        with Scheduler(encoder) as scheduler:
            awake, asleep = Held(graph._session), Held(graph._sleeping)
            graph._session, graph._sleeping = awake, asleep
            first = scheduler.submit(TEXTS[0])
            assert awake.began.wait(60)
            second = scheduler.submit(TEXTS)
            assert asleep.began.wait(60)
            asleep.free.set()
            np.testing.assert_allclose(second.result(60).embeddings, expected, atol=NORM_ERROR)
            awake.free.set()
            np.testing.assert_allclose(first.result(60).embeddings, expected[:1], atol=NORM_ERROR)
            asleep.began.clear()
            scheduler.encode(TEXTS[0])  # alone
            assert not asleep.began.is_set()
        assert not graph._in_flight


@pytest.mark.parametrize("options", [{"spinning": "off"}, {"spinning": "always"}, {"threads": 1}])
def test_no_second_session_where_it_gains_nothing(bundle, options):
    options = {"providers": "cpu", "threads": 2} | options
    with Encoder.load(bundle, **options) as encoder, Scheduler(encoder):
        assert encoder.pipeline.model.runner._sleeping is None


def test_no_second_session_where_weights_would_be_in_memory_twice(bundle_copy):
    (bundle_copy / "onnx/model_mapped.onnx").unlink()
    encoder = Encoder.load(bundle_copy, providers="cpu", threads=2, spinning="run", verify=False)
    with encoder, Scheduler(encoder):
        assert encoder.pipeline.model.runner._sleeping is None


def test_a_second_session_that_does_not_start_is_done_without(bundle, monkeypatch, caplog):
    def fail(self, config):
        raise BundleError("out of threads")

    with Encoder.load(bundle, providers="cpu", threads=2, spinning="run") as encoder:
        monkeypatch.setattr(type(encoder.pipeline.model.runner), "_open", fail)
        with Scheduler(encoder) as scheduler:
            assert encoder.pipeline.model.runner._sleeping is None
            assert scheduler.encode("a").shape == (32,)
    assert "no second session for runs in parallel: out of threads" in caplog.text


def test_no_second_session_of_another_model(bundle_copy):
    """A file that was replaced since would give other vectors."""
    with Encoder.load(bundle_copy, providers="cpu", threads=2, spinning="run") as encoder:
        expected = encoder.encode(TEXTS)
        graph = encoder.pipeline.model.runner.graph
        other = graph.with_name("other.onnx")
        other.write_bytes(graph.read_bytes())
        other.replace(graph)
        with Scheduler(encoder) as scheduler:
            assert encoder.pipeline.model.runner._sleeping is None
            np.testing.assert_allclose(scheduler.encode(TEXTS), expected, atol=NORM_ERROR)


def test_bad_spinning(bundle):
    with pytest.raises(ConfigError, match="spinning must be 'off', 'run', 'always' or None"):
        Encoder.load(bundle, spinning="sometimes")


ENGINES = tiers(["native", "cpu", "openvino"], fast=["native"])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_closed_encoder_says_so(bundle, engine, monkeypatch, tmp_path):
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path))
    with Encoder.load(bundle, providers=engine, variant="fp32") as encoder:
        vector = encoder.encode("a")
        providers = encoder.providers
    with pytest.raises(ClosedError, match=r"closed: load it again with Encoder\.load"):
        encoder.encode("a")
    with pytest.raises(ClosedError), Scheduler(encoder) as scheduler:
        scheduler.encode("a")
    encoder.close()
    assert vector.shape == (32,)
    assert encoder.providers == providers


def test_a_run_in_flight_survives_close(bundle):
    encoder = Encoder.load(bundle, providers="cpu")

    def texts():
        for i, text in enumerate(TEXTS):
            if i == 20:
                encoder.close()
            yield text

    session = encoder.pipeline.model.runner.session()  # as a running batch holds it
    with pytest.raises(ClosedError):
        encoder.encode(texts())
    assert session.get_inputs()


@pytest.mark.parametrize(
    ("providers", "expected"),
    [
        ("cpu", [(1, 16), (16, 16), (1, 128), (2, 128)]),
        ("native", [(1, 16), (1, 128)]),  # it gains nothing from full batches
    ],
)
def test_warmup_runs_the_shapes_of_use(providers, expected, bundle):
    encoder = Encoder.load(bundle, providers=providers)
    shapes = []
    run = encoder.pipeline.model.runner.run
    encoder.pipeline.model.runner.run = lambda batch, output: (shapes.append(batch.input_ids.shape),
                                                  run(batch, output))[1]  # fmt: skip
    encoder.warmup(lengths=(16, 500), batch_size=4)
    assert shapes == expected  # 500 is more than the limit of 128


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("engine", ENGINES)
def test_after_a_fork_and_without_another_engine(command_in_child, bundle, engine, tmp_path):
    error = 0 if engine == "native" else NORM_ERROR
    out = command_in_child(
        "import multiprocessing, os, sys\n"
        f"if {engine != 'cpu'}: sys.modules['onnxruntime'] = None\n"
        "import numpy as np; from mirror_rt import Encoder\n"
        f"options = dict(providers={engine!r}, variant='fp32', threads=2)\n"
        f"encoder = Encoder.load({str(bundle)!r}, **options)\n"
        "expected = encoder.encode(['a river', 'the town'] * 20)\n"
        "def work(_):\n"
        "    return encoder.encode(['a river', 'the town'] * 20)\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    for found in pool.map(work, range(4)):\n"
        f"        np.testing.assert_allclose(found, expected, rtol=0, atol={error})\n"
        "if os.fork() == 0:\n"
        "    encoder.encode('a'); encoder.close(); sys.exit(0)\n"
        "assert os.wait()[1] == 0\n"
        f"np.testing.assert_allclose(work(0), expected, rtol=0, atol={error})\n"
        "print('well', 'onnx' in sys.modules)",
        env=os.environ | {"TOKENIZERS_PARALLELISM": "true", "MIRROR_RT_CACHE": str(tmp_path)},
    )
    assert out.strip() == "well False"


def test_a_large_run_gives_its_memory_back(bundle, onnxruntime):
    encoder = Encoder.load(bundle, providers="cpu")
    session, options = encoder.pipeline.model.runner.session(), []

    class Spy:
        def run(self, outputs, feeds, run_options):
            options.append(run_options)
            return session.run(outputs, feeds, run_options)

    encoder.pipeline.model.runner._session = Spy()
    long = ["the " * i + "river " * 200 for i in range(40)]  # equal texts would run once
    encoder.encode(long)
    assert set(options) == {None}  # within the default budget memory is kept, which is faster
    encoder.encode(long, batch_size=128)
    entry = options[-1].get_run_config_entry("memory.enable_memory_arena_shrinkage")
    assert entry == "cpu:0"


@pytest.fixture
def spoiled(bundle_copy, bundle):
    """A bundle whose fp16 graph gives NaN for texts with `river`; and the same without fp32."""
    encoder = Encoder.load(bundle)
    river = encoder.tokenize("river")[0][1]
    spoil_token(bundle / "onnx/model.onnx", bundle_copy / "onnx/model_fp16.onnx", river)
    add_variant(bundle_copy, "fp16", "onnx/model_fp16.onnx", precision="fp16")
    return bundle_copy


def test_rows_that_are_not_finite_run_again_in_fp32(spoiled, bundle, caplog):
    encoder = Encoder.load(spoiled, variant="fp16", verify=False)
    expected = Encoder.load(bundle).encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=RUN_ERROR)
    encoder.encode(TEXTS)
    assert caplog.text.count("such texts run again in fp32 (said once)") == 1
    encoder.close()
    with pytest.raises(ClosedError):
        encoder.encode(TEXTS)


def test_where_fp32_fails_too_that_text_alone_fails(spoiled, bundle):
    (spoiled / "onnx/model_fp16.onnx").replace(spoiled / "onnx/model.onnx")
    (spoiled / "onnx/model_mapped.onnx").unlink(missing_ok=True)
    encoder = Encoder.load(spoiled, variant="fp32", verify=False)
    texts = ["a", "the river", "word", "river"]
    with pytest.raises(NonFiniteError) as caught:
        encoder.encode(texts)
    assert [row for row, _ in caught.value.items] == [1, 3]
    assert "no finite vector" in caught.value.items[0][1]
    vectors = encoder.encode(texts, errors="nan")
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False, True]
    expected = Encoder.load(bundle).encode(["a", "word"])
    np.testing.assert_allclose(vectors[[0, 2]], expected, atol=RUN_ERROR)
    with Scheduler(encoder) as scheduler:
        futures = [scheduler.submit(text) for text in texts]
        errors = [type(future.exception()) for future in futures]
    assert errors == [type(None), NonFiniteError, type(None), NonFiniteError]


@pytest.mark.parametrize("providers", ["auto", "cpu"])
def test_an_error_of_an_engine_is_a_bundle_error(bundle, providers):
    encoder = Encoder.load(bundle, providers=providers)
    with pytest.raises(BundleError, match="failed on 1 texts of 3 tokens"):
        encoder.pipeline.run(encoder.pipeline.pad(RaggedTokens.from_lists([[2, 10**6, 3]])))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads /proc/self/smaps")
def test_processes_share_the_weights(bundle, command_in_child):
    """Pages of model.onnx are mapped and never written: another process has the same ones.

    Not all of them: the kernel maps pages around those that were asked for, in each its own way.
    """
    here = Encoder.load(bundle, providers="cpu")
    expected = here.encode(TEXTS)
    out = command_in_child(
        "import json, re, sys; from mirror_rt import Encoder\n"
        f"encoder = Encoder.load({str(bundle)!r}, providers='cpu', threads=1)\n"
        f"print(float(encoder.encode({TEXTS!r}).sum()))\n"
        "text = open('/proc/self/smaps').read()\n"
        "parts = re.split(r'^(?=[0-9a-f]+-[0-9a-f]+ )', text, flags=re.MULTILINE)\n"
        f"mine = [p for p in parts if {str(bundle / 'onnx/model.onnx')!r} in p]\n"
        "total = lambda name: sum(int(re.search(name + r': +(\\d+) kB', p)[1]) for p in mine)\n"
        "shared = total('Shared_Clean') + total('Shared_Dirty')\n"  # dirty: not yet on the disk
        "print(total('Rss'), shared, total('Anonymous'))"
    )
    value, sizes = out.splitlines()
    resident, shared, written = map(int, sizes.split())
    assert float(value) == pytest.approx(float(expected.sum()), abs=expected.size * RUN_ERROR)
    assert written == 0
    assert shared > resident / 2 > 0
