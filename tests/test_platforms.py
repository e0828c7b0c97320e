"""csrc/ compiles for every system that is promised, and its kernels are right where they can run.

`bash tests/platforms.sh` runs these tests alone. zig, a compiler of C++ for all of the systems,
comes as a Python package.
"""

import os
import platform as this
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

from mirror_rt import _core
from needs import ZIG, find_wine
from paths import ROOT, TESTS

LEAST_COSINE = {"fp32": 1 - 1e-6, "bf16": 0.999, "int8": 0.99}
HERE = _core.engine_instruction_sets()
X86 = this.machine() == "x86_64"
ARM = ["portable", "neon_dot", "neon_i8mm"]


@dataclass(frozen=True)
class Platform:
    """A system and its processor, by zig's name and those of CMake.

    `runs` has commands that run a program, with the instruction sets that each must show.
    """

    target: str
    system: str
    processor: str
    runs: tuple[tuple[list[str], list[str]], ...] = ()
    needs: str = "zig"


PLATFORMS = [
    Platform("x86_64-linux-musl", "Linux", "x86_64", (([], HERE),) if X86 else ()),
    Platform(
        "aarch64-linux-musl", "Linux", "aarch64",
        ((["qemu-aarch64", "-cpu", "max"], ARM), (["qemu-aarch64", "-cpu", "cortex-a76"], ARM[:2]),
         (["qemu-aarch64", "-cpu", "cortex-a53"], ARM[:1])),
        "qemu",
    ),
    Platform(
        "x86_64-windows-gnu", "Windows", "AMD64",
        # Linux alone is asked for tiles.
        (([find_wine() or ""], [name for name in HERE if name != "avx512_amx"]),) if X86 else (),
        "wine",
    ),
    Platform("aarch64-linux-gnu", "Linux", "aarch64"),
    Platform("x86_64-macos", "Darwin", "x86_64"),
    Platform("aarch64-macos", "Darwin", "arm64"),
]  # fmt: skip


def build(platform, folder):
    """Compile the programs that check the kernels, warnings as errors."""
    environment = os.environ | {
        "ZIG": str(ZIG),
        "ZIG_TARGET": platform.target,
        "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig-cache"),
    }
    compiler = TESTS / "support" / "compiled" / "zig-c++"
    options = {
        "MIRROR_RT_CHECKS": "ON",
        "MIRROR_RT_WERROR": "ON",
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": platform.system,
        "CMAKE_SYSTEM_PROCESSOR": platform.processor,
        "CMAKE_CXX_COMPILER": compiler,
    }
    settings = [f"-D{name}={value}" for name, value in options.items()]
    for command in (
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *settings],
        ["cmake", "--build", folder],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def output(command, home):
    environment = os.environ | {"WINEPREFIX": str(home / "wine"), "WINEDEBUG": "-all"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def vectors(printed):
    """{(instruction set, precision): unit vectors} of what the engine's check prints."""
    found = {}
    for line in printed.splitlines():
        name, precision, *numbers = line.split()
        rows = np.array(numbers, np.float64).reshape(-1, 60)
        found[name, precision] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


# Vectors of a small encoder, as the portable kernels gave them in float32 on x86-64.
@pytest.fixture(scope="module")
def kept():
    printed = (TESTS / "support" / "compiled" / "native" / "engine_check.txt").read_text("utf-8")
    return vectors(printed)["portable", "fp32"]


@pytest.mark.full
@pytest.mark.parametrize(
    "platform",
    [
        pytest.param(
            one,
            id=one.target,
            marks=[pytest.mark.needs(one.needs), *([pytest.mark.compiled] if one.runs else [])],
        )
        for one in PLATFORMS
    ],
)
def test_kernels_compile_and_give_the_same_vectors_everywhere(platform, tmp_path, kept):
    build(platform, tmp_path)
    suffix = ".exe" if platform.system == "Windows" else ""
    for run, expected in platform.runs:
        printed = {
            check: output([*run, tmp_path / f"{check}_check{suffix}"], tmp_path)
            for check in ("engine", "infonce", "vector_ops")
        }
        found = vectors(printed["engine"])
        shown = [name for name, precision in found if precision == "fp32"]
        assert shown == expected
        for (_, precision), rows in found.items():
            assert (rows * kept).sum(axis=1).min() > LEAST_COSINE[precision]
        assert "portable: 401 pairs" in printed["infonce"]
        assert "portable: 80 cases" in printed["vector_ops"]


@pytest.mark.full
@pytest.mark.compiled
@pytest.mark.skipif(not X86, reason="the program times instructions of x86")
def test_the_program_that_times_products_follows_the_engine():
    program = ROOT / "benchmarks" / "encode" / "products.cpp"
    sets = ["-mavx512f", "-mavx512bw", "-mavx512vnni", "-mavx512bf16"]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Werror", f"-I{ROOT / 'csrc'}", *sets]
    subprocess.run([*command, str(program)], check=True)
