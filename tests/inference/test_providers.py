"""Which provider is taken where CUDA does not start, and how loudly that is said."""

import logging

import pytest

from fake_cuda import make_onnxruntime
from mirror_rt import Encoder, ProviderError
from mirror_rt.inference import providers, shared_libraries
from mirror_rt.inference.providers import CPU, CUDA

CUDNN = "libcudnn_none.so.9"


@pytest.fixture
def gpu_wheel(tmp_path, monkeypatch, caplog):
    """Let onnxruntime be the GPU wheel, whose CUDA lacks cuDNN, on a machine with `cards`."""
    import onnxruntime

    def make(cards, missing=(CUDNN,)):
        fake = make_onnxruntime(tmp_path, missing=list(missing))
        monkeypatch.setattr(onnxruntime, "__file__", fake.__file__)
        monkeypatch.setattr(onnxruntime, "__version__", fake.__version__)
        monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
        monkeypatch.setattr(onnxruntime, "get_available_providers", fake.get_available_providers)
        monkeypatch.setattr("mirror_rt.inference.providers.nvidia_cards", lambda: cards)

    caplog.set_level(logging.INFO, logger="mirror_rt")
    return make


def test_a_card_whose_cuda_cannot_start_is_an_error(bundle, gpu_wheel):
    gpu_wheel(cards=1)
    with pytest.raises(ProviderError) as refused:
        Encoder.load(bundle)
    message = str(refused.value)
    assert f"missing {CUDNN}" in message
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]==1.99.0'" in message
    assert "allow_fallback=True" in message


def test_a_fallback_that_is_allowed_is_a_warning(bundle, gpu_wheel, caplog):
    gpu_wheel(cards=1)
    assert Encoder.load(bundle, allow_fallback=True).providers == [CPU]
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert CUDNN in warning.message
    assert "running on the CPU" in warning.message


@pytest.mark.parametrize("allow_fallback", [False, True])
def test_without_a_card_the_cpu_is_taken_silently(bundle, gpu_wheel, caplog, allow_fallback):
    gpu_wheel(cards=0)
    assert Encoder.load(bundle, allow_fallback=allow_fallback).providers == [CPU]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"{CUDA} could not start" in caplog.text  # at INFO, for those who look


def test_a_card_that_the_cpu_wheel_leaves_idle_is_mentioned_once(bundle, monkeypatch, caplog):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [CPU])
    monkeypatch.setattr(providers, "card_files", lambda: ["/dev/nvidia0"])
    providers._say_that_cards_are_unused.cache_clear()
    Encoder.load(bundle, providers="cpu")
    assert not caplog.records
    for _ in range(2):
        assert Encoder.load(bundle).providers == [CPU]
    (warning,) = caplog.records
    assert "pip install 'mirror-rt[gpu]'" in warning.message


class Driver:
    """A libcuda.so.1 that does not start."""

    def __init__(self, code):
        self.code = code

    def cuInit(self, flags):  # noqa: N802  # its name
        return self.code

    def cuGetErrorString(self, code, text):  # noqa: N802
        text._obj.value = b"driver/library version mismatch"
        return 0


@pytest.mark.parametrize("missing", [[], [CUDNN]])
def test_a_driver_that_does_not_start_is_an_error(bundle, gpu_wheel, monkeypatch, missing, caplog):
    """A card behind it would go unused unseen."""
    gpu_wheel(cards=0, missing=missing)
    monkeypatch.setattr(shared_libraries.ctypes, "CDLL", lambda *_: Driver(803))
    with pytest.raises(ProviderError, match=f"{CUDA} could not start") as refused:
        Encoder.load(bundle)
    if not missing:
        assert "does not start (driver/library version mismatch, error 803)" in str(refused.value)
    assert Encoder.load(bundle, allow_fallback=True).providers == [CPU]
    assert [record for record in caplog.records if record.levelno == logging.WARNING]
    monkeypatch.setattr(shared_libraries.ctypes, "CDLL", lambda *_: Driver(100))  # no card
    assert Encoder.load(bundle).providers == [CPU]


def test_cuda_asked_for_by_name_is_an_error_without_a_card_too(bundle, gpu_wheel):
    gpu_wheel(cards=0)
    with pytest.raises(ProviderError, match=CUDNN):
        Encoder.load(bundle, providers="cuda")


def test_an_onnxruntime_that_goes_on_without_cuda_is_found_out(bundle, monkeypatch):
    import onnxruntime

    session = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr("mirror_rt.inference.graph_loading.why_not", lambda *_: None)
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, options, providers, **_: session(path, options, providers=[CPU]),
    )
    with pytest.raises(ProviderError, match=f"{CUDA} could not start: .* gives no reason"):
        Encoder.load(bundle, providers=[CUDA, CPU])
