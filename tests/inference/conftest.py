"""What the tests of the engines share."""

from collections.abc import Iterator

import pytest

from mirror_rt import _core


@pytest.fixture(scope="session")
def engine_is_fast() -> Iterator[None]:
    """Let `auto` take the engine, also on a processor without the instructions of its kernels."""
    sets = _core.engine_instruction_sets()
    with pytest.MonkeyPatch.context() as patch:
        if sets[-1] == "portable":
            patch.setattr(_core, "engine_instruction_sets", lambda: [*sets, "of its kernels"])
        yield
