"""The C++ of the loss without Python: under sanitizers, and on another processor."""

import platform

import pytest

from native_build import run_check

pytestmark = [pytest.mark.full, pytest.mark.compiled, pytest.mark.needs("compiler")]

KERNELS = ["loss", "isa", "packing", "tile_portable", "rows"]
PORTABLE = [*(f"infonce/cpu/{part}" for part in KERNELS), "isa_list", "parallel"]
X86 = [f"infonce/cpu/tile_{isa}" for isa in ("avx2", "avx512", "avx512_bf16")]
FLAGS = ["-O1", "-ffp-contract=fast"]


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_under_sanitizers(tmp_path, sanitizer):
    x86 = platform.machine() == "x86_64"
    # Every geometry, lowered to what the processor has, whichever that is.
    flags = [*FLAGS, f"-fsanitize={sanitizer}", "-Wno-psabi"]
    flags += ["-DMIRROR_RT_X86", "-DMIRROR_RT_EMULATE"] if x86 else []
    parts = [*PORTABLE, *X86] if x86 else PORTABLE
    assert "portable: 401 pairs" in run_check("infonce_check", parts, flags, tmp_path)


def test_without_vector_extensions(tmp_path):
    """As Microsoft's compiler builds it."""
    flags = [*FLAGS, "-DMIRROR_RT_PLAIN_VECTORS"]
    assert "portable: 401 pairs" in run_check("infonce_check", PORTABLE, flags, tmp_path)
