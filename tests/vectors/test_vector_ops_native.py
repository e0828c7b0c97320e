"""Quantisation and top-k in C++ without Python: under sanitizers, and on another processor."""

import platform

import pytest

from native_build import run_check

pytestmark = pytest.mark.compiled

PARTS = [
    "isa_list",
    "parallel",
    *(f"vector_ops/{name}" for name in ("vector_ops", "maxsim", "kernels_portable")),
]
X86 = [*PARTS, "vector_ops/kernels_avx2", "vector_ops/kernels_avx512"]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_under_sanitizers(tmp_path, sanitizer):
    # Every instruction set's file, lowered to what the processor has, whichever that is.
    x86 = platform.machine() == "x86_64"
    flags = ["-O2", f"-fsanitize={sanitizer}", "-Wno-psabi"]
    flags += ["-DMIRROR_RT_X86", "-DMIRROR_RT_EMULATE"] if x86 else []
    out = run_check("vector_ops_check", X86 if x86 else PARTS, flags, tmp_path)
    for name in ["portable", "avx2", "avx512"] if x86 else ["portable"]:
        assert f"{name}: 80 cases" in out
