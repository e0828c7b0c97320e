"""Which provider is taken where CUDA does not start, and how loudly that is said."""

import logging

import pytest

from fake_cuda import make_onnxruntime
from mirror_rt import Encoder, ProviderError
from mirror_rt.inference import providers, shared_libraries
from mirror_rt.inference.providers import CPU, CUDA, NATIVE

pytestmark = pytest.mark.usefixtures("engine_is_fast")

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
        monkeypatch.setattr(shared_libraries, "card_files", lambda: [])

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
    assert Encoder.load(bundle, allow_fallback=True).providers == [NATIVE]
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert CUDNN in warning.message
    assert "running on the CPU" in warning.message


@pytest.mark.parametrize("allow_fallback", [False, True])
def test_without_a_card_the_cpu_is_taken_silently(bundle, gpu_wheel, caplog, allow_fallback):
    gpu_wheel(cards=0)
    assert Encoder.load(bundle, allow_fallback=allow_fallback).providers == [NATIVE]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "native engine where no card is used" in caplog.text  # at INFO, for those who look


@pytest.mark.parametrize("options", [{"devices": [0]}, {"cuda_graphs": True}])
def test_without_a_card_the_options_for_one_go_with_it(bundle, gpu_wheel, caplog, options):
    gpu_wheel(cards=0)
    encoder = Encoder.load(bundle, **options)
    assert (encoder.providers, encoder.devices) == ([NATIVE], ["cpu"])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"{CUDA} could not start" in caplog.text
    assert f"{CUDA} does not start: missing {CUDNN}" in encoder.provider_reason


def test_a_card_that_the_cpu_wheel_leaves_idle_is_mentioned_once(bundle, monkeypatch, caplog):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [CPU])
    monkeypatch.setattr(providers, "card_files", lambda: ["/dev/nvidia0"])
    providers.say_that_cards_are_unused.cache_clear()
    Encoder.load(bundle, providers="cpu")
    assert not caplog.records
    for _ in range(2):
        assert Encoder.load(bundle).providers == [NATIVE]
    (warning,) = caplog.records
    assert "pip install 'mirror-rt[gpu]'" in warning.message


class Driver:
    """A libcuda.so.1 that does not start, or offers no card."""

    def __init__(self, code):
        self.code = code

    def cuInit(self, flags):  # noqa: N802  # its name
        return self.code

    def cuDeviceGetCount(self, count):  # noqa: N802
        return 0  # of no cards

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
    assert Encoder.load(bundle, allow_fallback=True).providers == [NATIVE]
    assert [record for record in caplog.records if record.levelno == logging.WARNING]
    monkeypatch.setattr(shared_libraries.ctypes, "CDLL", lambda *_: Driver(100))  # no card
    assert Encoder.load(bundle).providers == [NATIVE]


@pytest.mark.parametrize("code", [None, 0, 34, 100], ids=["no driver", "none", "stub", "no card"])
def test_a_card_that_the_driver_does_not_offer_is_an_error(bundle, gpu_wheel, monkeypatch, code):
    """Its device file shows that it is there."""

    def load(*_):
        if code is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return Driver(code)

    gpu_wheel(cards=0, missing=[])
    monkeypatch.setattr(shared_libraries, "card_files", lambda: ["/dev/nvidia0"])
    monkeypatch.setattr(shared_libraries.ctypes, "CDLL", load)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lacks = "is not installed" if code is None else "offers no card"
    with pytest.raises(ProviderError, match=f"/dev/nvidia0, and the NVIDIA driver {lacks}"):
        Encoder.load(bundle)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert Encoder.load(bundle).providers == [NATIVE]


class MemoryDriver(Driver):
    """A driver of one card, which counts the contexts that are current in this thread."""

    current = 0

    def cuDeviceGet(self, card, number):  # noqa: N802
        card._obj.value = 70 + number
        return 0 if number == 0 else 101

    def cuDevicePrimaryCtxRetain(self, context, card):  # noqa: N802
        context._obj.value = 7 * card.value
        return 0

    def cuCtxPushCurrent_v2(self, context):  # noqa: N802
        self.current += context.value == 490
        return 0

    def cuMemGetInfo_v2(self, free, total):  # noqa: N802
        assert self.current == 1
        free._obj.value, total._obj.value = 5 << 30, 8 << 30
        return self.code

    def cuCtxPopCurrent_v2(self, context):  # noqa: N802
        self.current -= 1
        return 0


def test_the_free_memory_of_a_card(monkeypatch):
    driver = MemoryDriver(0)
    monkeypatch.setattr(shared_libraries.ctypes, "CDLL", lambda *_: driver)
    assert shared_libraries.free_memory(0) == 5 << 30
    assert shared_libraries.free_memory(1) is None  # there is no such card
    assert driver.current == 0
    monkeypatch.setattr(driver, "cuMemGetInfo_v2", lambda *_: 2)
    assert shared_libraries.free_memory(0) is None
    assert driver.current == 0
    monkeypatch.setattr(shared_libraries.ctypes, "CDLL", lambda *_: Driver(100))
    assert shared_libraries.free_memory(0) is None


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
