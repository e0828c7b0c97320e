"""The C++ of the loss without Python: under sanitizers, and on another processor."""

import platform
import subprocess

import pytest

from paths import ROOT, TESTS

pytestmark = [pytest.mark.full, pytest.mark.compiled]
PORTABLE = ["loss", "isa", "packing", "tile_portable", "rows"]
X86 = [*PORTABLE, "tile_avx2", "tile_avx512", "tile_avx512_bf16"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
FLAGS = ["-std=c++17", "-O1", "-g", "-ffp-contract=fast", "-pthread", *WARNINGS]


def build(compiler, parts, flags, binary):
    names = [*(f"infonce/cpu/{part}" for part in parts), "isa_list", "parallel"]
    sources = [ROOT / "csrc" / f"{name}.cpp" for name in names]
    check = TESTS / "support" / "compiled" / "native" / "infonce_check.cpp"
    include = f"-I{ROOT / 'csrc'}"
    subprocess.run([compiler, *FLAGS, *flags, include, *sources, check, "-o", binary], check=True)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_under_sanitizers(tmp_path, sanitizer):
    x86 = platform.machine() == "x86_64"
    # Every geometry, lowered to what the processor has, whichever that is.
    flags = ["-DMIRROR_RT_X86", "-DMIRROR_RT_EMULATE"] if x86 else []
    parts = X86 if x86 else PORTABLE
    build("g++", parts, [f"-fsanitize={sanitizer}", "-Wno-psabi", *flags], tmp_path / "check")
    assert "portable: 401 pairs" in run(tmp_path / "check")


@pytest.mark.needs("compiler")
def test_without_vector_extensions(tmp_path):
    """As Microsoft's compiler builds it."""
    build("g++", PORTABLE, ["-DMIRROR_RT_PLAIN_VECTORS"], tmp_path / "check")
    assert "portable: 401 pairs" in run(tmp_path / "check")
