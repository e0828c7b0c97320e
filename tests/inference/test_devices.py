"""What runs on NVIDIA cards, on the CPU: bound buffers, captured shapes, several sessions.

The same calls of onnxruntime work there, so all but the card is tested; and on a card, with it.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from damage import add_variant, spoil_token
from mirror_rt import BundleError, ClosedError, ConfigError, Encoder, ProviderError, Scheduler
from mirror_rt.inference.devices import with_options
from mirror_rt.inference.loaded_graph import Replicas
from mirror_rt.inference.providers import CPU, CUDA
from mirror_rt.inference.shared_libraries import nvidia_cards
from mirror_rt.tokens.windows import parallel_map
from rounding import NORM_ERROR, RUN_ERROR, assert_within_gate

ENDS = ["the river", "a", "the old town hall by the river " * 3, "word", "river " * 100]
TEXTS = ["the " * i + end for i in range(8) for end in ENDS]  # equal texts would run once


@pytest.fixture(scope="module")
def expected(bundle):
    return Encoder.load(bundle).encode(TEXTS)


def test_rows_that_are_not_finite_run_again_on_the_same_card(bundle_copy, bundle, cards, expected):
    river = Encoder.load(bundle).tokenize("river")[0][1]
    spoil_token(bundle / "onnx/model.onnx", bundle_copy / "onnx/model_fp16.onnx", river)
    add_variant(bundle_copy, "fp16", "onnx/model_fp16.onnx", precision="fp16")
    encoder = Encoder.load(bundle_copy, variant="fp16", verify=False, devices=[1, 2])
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=RUN_ERROR)
    assert encoder.pipeline.model._exact.devices == [1]


@pytest.mark.parametrize("devices", ["all", [0, 1, 2]])
def test_several_devices_give_the_same_in_order(bundle, cards, expected, devices):
    with Encoder.load(bundle, devices=devices) as encoder:
        assert encoder.devices == ["cuda:0", "cuda:1", "cuda:2"]
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=2), expected, atol=RUN_ERROR)
        found = np.stack(list(encoder.encode_iter(iter(TEXTS), window=7)))
        np.testing.assert_allclose(found, expected, atol=RUN_ERROR)
        for text, vector in zip(TEXTS[:6], expected, strict=False):
            np.testing.assert_allclose(encoder.encode(text), vector, atol=RUN_ERROR)
        assert min(encoder.pipeline.model.runner._runs) > 1
        assert encoder.pipeline.model.runner._running == [0, 0, 0]
        encoder.warmup(lengths=[16])
    with pytest.raises(ClosedError):
        encoder.encode(TEXTS)


def test_devices_run_at_the_same_time(bundle, cards):
    encoder = Encoder.load(bundle, devices="all")
    meeting, left = threading.Barrier(3, timeout=300), threading.Semaphore(3)
    for replica in encoder.pipeline.model.runner.replicas:

        def run(batch, output, run=replica.run):
            if left.acquire(blocking=False):
                meeting.wait()  # until all three run
            return run(batch, output)

        replica.run = run
    assert encoder.encode(TEXTS, batch_size=2).shape == (40, 32)
    left.release(3)
    with Scheduler(encoder, token_budget=128) as scheduler:
        futures = [scheduler.submit(text) for text in TEXTS]
        assert all(future.result(60).embeddings.shape == (1, 32) for future in futures)


def test_an_error_names_its_card(bundle, cards, monkeypatch):
    import onnxruntime

    encoder = Encoder.load(bundle, devices=[0, 2])

    def fail(*_):
        raise onnxruntime.capi.onnxruntime_pybind11_state.Fail("out of memory")

    monkeypatch.setattr(encoder.pipeline.model.runner.replicas[1]._bound, "run", fail)
    with pytest.raises(BundleError, match=r"failed on cuda:2 on .* out of memory"):
        encoder.encode(TEXTS, batch_size=2)


def test_the_choice_is_said(bundle, cards, caplog):
    with caplog.at_level("INFO", "mirror_rt"):
        Encoder.load(bundle, devices=[0, 1])
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "OpenVINO" not in line] == [
        f"{bundle}/onnx/model_mapped.onnx runs under CPUExecutionProvider on cuda:0, cuda:1: "
        "auto takes onnxruntime where nothing else runs the bundle; "
        "native does not run it: it does not have the option devices"
    ]


@pytest.mark.parametrize("devices", [[], [0, 0], [3], [-1], ["a"], "some", [0.5]])
def test_bad_devices(bundle, cards, devices):
    with pytest.raises(ConfigError, match="devices must be"):
        Encoder.load(bundle, devices=devices)


@pytest.mark.parametrize(
    "options",
    [{"devices": [0]}, {"cuda_graphs": True}, {"provider_options": {"gpu_mem_limit": 1}}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_cards_are_errors_on_the_cpu(bundle, options):
    name = next(iter(options))
    with pytest.raises(ConfigError, match=f"{name}=.* this session is on the CPU"):
        Encoder.load(bundle, providers="cpu", **options)
    with pytest.raises(ConfigError, match="this session is on the CPU"):
        Encoder.load(bundle, providers="cpu", allow_fallback=True, **options)
    if not nvidia_cards():  # what was asked of the card goes with it
        encoder = Encoder.load(bundle, providers="cuda", allow_fallback=True, **options)
        assert encoder.devices == ["cpu"]


def test_parallel_map_keeps_the_order_and_stops_at_an_error():
    with parallel_map(4) as run_each:
        assert list(run_each(lambda i: i * i, range(50))) == [i * i for i in range(50)]
        assert list(run_each(str, [])) == []
    with parallel_map(1) as run_each:
        ((_, thread),) = run_each(lambda i: (i, threading.current_thread()), [1])
    assert thread is threading.current_thread()
    done = []

    def work(i):
        if i == 3:
            raise ValueError("broken")
        done.append(i)

    with pytest.raises(ValueError, match="broken"), parallel_map(2) as run_each:
        list(run_each(work, range(1000)))
    assert len(done) < 20
    assert not [t for t in threading.enumerate() if t.name.startswith("mirror_rt-run")]


def test_a_run_goes_to_the_device_with_least_to_do(bundle):
    class Fake:
        graph, providers, outputs, devices, ran = bundle, [CUDA], [], [0], 0

        def run(self, batch, output):
            self.ran += 1
            return self.inner() if self.inner else None

        inner = None

    first, second = Fake(), Fake()
    replicas = Replicas([first, second])
    first.inner = lambda: [replicas.run(None, "") for _ in range(3)]  # while the first is busy
    replicas.run(None, "")
    assert (first.ran, second.ran) == (1, 3)


# CUDA graphs


@pytest.fixture
def captured(bundle, cards):
    encoder = Encoder.load(bundle, cuda_graphs=True)
    yield encoder
    encoder.close()


def test_captured_shapes_give_what_runs_give(captured, expected):
    runs = []
    graphs = captured.pipeline.model.runner._captured
    run = graphs.run
    graphs.run = lambda shape, *rest: (runs.append(shape), run(shape, *rest))[1]
    for rows in (1, 2, 3, 5, 8):
        texts = TEXTS[:rows]
        np.testing.assert_allclose(captured.encode(texts), expected[:rows], atol=RUN_ERROR)
        plain = captured.encode(texts, normalize_embeddings=False)
        unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
        np.testing.assert_allclose(unit, expected[:rows], atol=RUN_ERROR)
    assert len(runs) >= 10
    before = len(runs)
    np.testing.assert_allclose(captured.encode(TEXTS, batch_size=512), expected, atol=RUN_ERROR)
    assert len(runs) < before + 5  # most of it in batches of more rows, by the ordinary session


def test_a_batch_takes_the_smallest_shape_that_holds_it(captured):
    fit = captured.pipeline.model.runner._captured.fit
    assert [fit(1, 2), fit(3, 20), fit(8, 128), fit(1, 65)] == [
        (1, 16),
        (4, 32),
        (8, 128),
        (1, 128),
    ]
    assert [fit(9, 2), fit(1, 129)] == [None, None]


def test_a_shape_keeps_its_number_its_buffers_and_its_thread(captured, monkeypatch):
    session = captured.pipeline.model.runner._captured._session.session()
    if not hasattr(session.io_binding(), "_bound_inputs"):
        pytest.skip("this onnxruntime, such as 1.20, does not show what is bound to a run")
    seen, run = [], session.run_with_iobinding

    def spy(binding, options):
        number = int(options.get_run_config_entry("gpu_graph_id"))
        addresses = tuple(value.data_ptr() for value in binding._bound_inputs.values())
        addresses += tuple(value.data_ptr() for value in binding._bound_outputs.values())
        seen.append((number, addresses, threading.current_thread().name))
        run(binding, options)

    monkeypatch.setattr(session, "run_with_iobinding", spy)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: [captured.encode(TEXTS[:n]) for n in (1, 3, 8)], range(4)))
    numbers = {number for number, _, _ in seen}
    assert len(seen) >= 12
    assert 0 not in numbers
    assert -1 not in numbers
    assert len({(number, addresses) for number, addresses, _ in seen}) == len(numbers)
    assert len({addresses for _, addresses, _ in seen}) == len(numbers)
    assert {name for _, _, name in seen} == {"mirror_rt-cuda-graphs_0"}


def test_captured_shapes_close(captured):
    captured.encode("a")
    captured.close()
    with pytest.raises(ClosedError):
        captured.encode("a")
    captured.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("mirror_rt-cuda-graphs")]


def test_an_error_in_a_captured_shape_is_named(captured):
    from mirror_rt.tokens.padding import RaggedTokens

    with pytest.raises(BundleError, match="failed on cuda:0 on 1 texts of 3 tokens"):
        captured.pipeline.run(captured.pipeline.pad(RaggedTokens.from_lists([[2, 10**6, 3]])))
    assert captured.encode("a").shape == (32,)


def test_what_cannot_be_captured_is_refused(bundle_copy, cards, monkeypatch):
    import onnxruntime

    (bundle_copy / "onnx/model.onnx").rename(bundle_copy / "onnx/model_int8.onnx")
    add_variant(bundle_copy, "int8", "onnx/model_int8.onnx", precision="int8")
    with pytest.raises(ConfigError, match="has no int8 graph to capture"):
        Encoder.load(bundle_copy, variant="int8", cuda_graphs=True, verify=False)
    (bundle_copy / "onnx/model_int8.onnx").rename(bundle_copy / "onnx/model.onnx")

    def fail(*_):
        raise onnxruntime.capi.onnxruntime_pybind11_state.Fail("not all nodes are on CUDA")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", fail)
    with pytest.raises(ConfigError, match=r"cannot be captured as a CUDA graph: .*not all nodes"):
        Encoder.load(bundle_copy, variant="fp32", cuda_graphs=True, verify=False)
    assert not [t for t in threading.enumerate() if t.name.startswith("mirror_rt-cuda-graphs")]


# What onnxruntime is told


@pytest.mark.parametrize(
    ("free", "limit"),
    [(140 << 30, (140 << 30) * 15 // 16), (4 << 30, 7 << 29), (600 << 20, 300 << 20), (None, None)],
)
def test_options_of_cuda(monkeypatch, free, limit):
    monkeypatch.setattr("mirror_rt.inference.devices.free_memory", {2: free}.get)
    (cuda, cpu) = with_options([CUDA, CPU], 2, {"use_tf32": True})
    expected = {"device_id": "2", "arena_extend_strategy": "kNextPowerOfTwo", "use_tf32": "1"}
    assert cuda == (CUDA, expected if limit is None else expected | {"gpu_mem_limit": str(limit)})
    assert cpu == (CPU, {})
    ((_, options),) = with_options([CUDA], 2, {"gpu_mem_limit": 10})
    assert options["gpu_mem_limit"] == "10"


@pytest.fixture
def cuda_build(monkeypatch):
    """An onnxruntime-gpu on a machine of two cards, whose sessions run on the CPU all the same."""
    import onnxruntime

    session, opened = onnxruntime.InferenceSession, []

    def open_session(path, options, providers, **rest):
        opened.append((str(path), providers, rest))
        made = session(path, options, providers=[CPU], **rest)
        made.get_providers = lambda: [name for name, _ in providers]
        return made

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr("mirror_rt.inference.graph_loading.why_not", lambda *_: None)
    for module in ("devices", "providers"):
        monkeypatch.setattr(f"mirror_rt.inference.{module}.nvidia_cards", lambda: 2)
    for module in ("graph_loading", "session"):
        monkeypatch.setattr(f"mirror_rt.inference.{module}.memory_of", lambda *_: ("cpu", 0))
    return opened


def test_what_a_cuda_session_is_opened_with(bundle, cuda_build, expected):
    encoder = Encoder.load(bundle, devices="all", cuda_graphs=True)
    assert encoder.providers == [CUDA, CPU]
    assert encoder.devices == ["cuda:0", "cuda:1"]
    told = [tuple(providers[0][1].get(key) for key in ("device_id", "enable_cuda_graph",
            "sdpa_kernel")) for _, providers, _ in cuda_build]  # fmt: skip
    # cuDNN, which makes a plan for each shape, is only for the shapes that are captured.
    plain, captured = (None, "55"), ("1", None)
    assert told == [("0", *plain), ("0", *captured), ("1", *plain), ("1", *captured)]
    assert all(rest["enable_fallback"] == 0 for _, _, rest in cuda_build)
    assert not any(rest["disabled_optimizers"] for _, _, rest in cuda_build)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=RUN_ERROR)
    assert encoder.pipeline.model.run_cost > 1000
    encoder.close()


def test_cuda_after_a_fork_says_what_to_do(bundle, cuda_build):
    encoder = Encoder.load(bundle)
    encoder.pipeline.model.runner.forget()  # as a forked process does
    with pytest.raises(ProviderError, match=r"was forked after it started: .* 'spawn'"):
        encoder.encode("a")


def test_a_card_that_fails_is_no_silent_cpu(bundle, cuda_build, monkeypatch, caplog):
    import onnxruntime

    open_session = onnxruntime.InferenceSession

    def fail_on_cards(path, options, providers, **rest):
        if providers[0][0] != CPU:
            raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected")
        return open_session(path, options, providers, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail_on_cards)
    with pytest.raises(ProviderError, match="could not start: CUDA failure 100"):
        Encoder.load(bundle, providers="cuda")
    encoder = Encoder.load(bundle, providers="cuda", allow_fallback=True, devices=[0, 1])
    assert encoder.devices == ["cpu"]
    assert "CUDA failure 100" in caplog.text
    assert "running on the CPU" in caplog.text


# On a card


@pytest.fixture(scope="module")
def cuda_encoder(bundle):
    import onnxruntime

    if CUDA not in onnxruntime.get_available_providers() or not nvidia_cards():
        pytest.skip("needs an NVIDIA card and onnxruntime-gpu")
    with Encoder.load(bundle, providers="cuda", variant="fp32") as encoder:
        yield encoder


@pytest.mark.gpu
def test_a_card_agrees_with_the_cpu(bundle, cuda_encoder):
    expected = Encoder.load(bundle, providers="cpu").encode(TEXTS)
    assert cuda_encoder.devices == ["cuda:0"]
    assert_within_gate(cuda_encoder.encode(TEXTS), expected, "fp32")
    alone = np.stack([cuda_encoder.encode(text) for text in TEXTS[:5]])
    assert_within_gate(alone, expected[:5], "fp32")


@pytest.mark.gpu
def test_bound_runs_on_a_card_give_what_runs_give(cuda_encoder):
    for batch_size in (1, 32, 256):
        found = cuda_encoder.encode(TEXTS, batch_size=batch_size)
        session = cuda_encoder.pipeline.model.runner
        session._bound, bound = None, session._bound
        expected = cuda_encoder.encode(TEXTS, batch_size=batch_size)
        session._bound = bound
        np.testing.assert_allclose(found, expected, atol=NORM_ERROR)


@pytest.mark.gpu
def test_cuda_graphs_on_a_card(bundle, cuda_encoder):
    with Encoder.load(bundle, providers="cuda", variant="fp32", cuda_graphs=True) as encoder:
        for rows in (1, 2, 3, 5, 8, 40, 1, 8):
            expected = cuda_encoder.encode(TEXTS[:rows])
            assert_within_gate(encoder.encode(TEXTS[:rows]), expected, "fp32")


@pytest.mark.gpu
def test_all_cards(bundle, cuda_encoder):
    with Encoder.load(bundle, providers="cuda", variant="fp32", devices="all") as encoder:
        assert len(encoder.devices) == nvidia_cards()
        found = encoder.encode(TEXTS, batch_size=2)
        assert_within_gate(found, cuda_encoder.encode(TEXTS), "fp32")
