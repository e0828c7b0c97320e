"""What the tests of the engines share."""

from collections.abc import Iterator

import pytest

from mirror_rt import _core
from mirror_rt.inference.providers import CPU, CUDA


@pytest.fixture(scope="session")
def engine_is_fast() -> Iterator[None]:
    """Let `auto` take the engine, also on a processor without the instructions of its kernels."""
    sets = _core.engine_instruction_sets()
    with pytest.MonkeyPatch.context() as patch:
        if sets[-1] == "portable":
            patch.setattr(_core, "engine_instruction_sets", lambda: [*sets, "of its kernels"])
        yield


@pytest.fixture
def cards(monkeypatch):
    """Let the CPU be three cards."""
    monkeypatch.setattr("mirror_rt.inference.devices._ON_CARDS", {CPU, CUDA})
    monkeypatch.setattr("mirror_rt.inference.devices.nvidia_cards", lambda: 3)
