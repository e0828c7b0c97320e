"""Quantisation and top-k in C++ without Python: under sanitizers, and on another processor."""

import platform
import subprocess

import pytest

from paths import ROOT, TESTS

pytestmark = pytest.mark.compiled

PARTS = ["isa_list", "parallel", "vector_ops/vector_ops", "vector_ops/kernels_portable"]
X86 = [*PARTS, "vector_ops/kernels_avx2", "vector_ops/kernels_avx512"]
FLAGS = ["-std=c++17", "-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def build(compiler, parts, flags, binary):
    sources = [ROOT / "csrc" / f"{part}.cpp" for part in parts]
    check = TESTS / "support" / "compiled" / "native" / "vector_ops_check.cpp"
    command = [compiler, *FLAGS, *flags, f"-I{ROOT / 'csrc'}", *sources, check, "-o", binary]
    subprocess.run(command, check=True)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_under_sanitizers(tmp_path, sanitizer):
    # Every instruction set's file, lowered to what the processor has, whichever that is.
    x86 = platform.machine() == "x86_64"
    flags = ["-DMIRROR_RT_X86", "-DMIRROR_RT_EMULATE"] if x86 else []
    build("g++", X86 if x86 else PARTS, [f"-fsanitize={sanitizer}", *flags], tmp_path / "check")
    out = run(tmp_path / "check")
    for name in ["portable", "avx2", "avx512"] if x86 else ["portable"]:
        assert f"{name}: 80 cases" in out
