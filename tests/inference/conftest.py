"""What the tests of the engines share."""

from collections.abc import Iterator

import pytest

from mirror_rt.inference.providers import CPU, CUDA


@pytest.fixture(scope="session")
def engine_is_fast() -> Iterator[None]:
    """Let `auto` take the engine, also on a processor without the instructions of its kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirror_rt.inference.engines.has_quick_kernels", lambda: True)
        yield


@pytest.fixture
def cards(monkeypatch):
    """Let the CPU be three cards."""
    monkeypatch.setattr("mirror_rt.inference.devices._ON_CARDS", {CPU, CUDA})
    monkeypatch.setattr("mirror_rt.inference.devices.nvidia_cards", lambda: 3)
