"""The engine's kernels for ARM give what those for this processor give, in an emulator."""

import subprocess

import numpy as np
import pytest

from paths import ROOT, TESTS

pytestmark = [pytest.mark.full, pytest.mark.compiled]
CROSS, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"
SOURCES = ["parallel.cpp", *(f"engine/{name}.cpp" for name in ("engine", "isa", "packing", "run"))]
# As in CMakeLists.txt.
KERNELS = {
    "portable": [],
    "neon_dot": ["-march=armv8.2-a+dotprod"],
    "neon_bf16": ["-march=armv8.2-a+dotprod+bf16"],
}
LEAST_COSINE = {"fp32": 1 - 1e-6, "bf16": 0.999, "int8": 0.99}


def build(folder, compiler, kernels, *defines):
    """Compile the engine and a program that prints vectors; return its path."""
    flags = [compiler, "-std=c++17", "-O2", "-ffp-contract=fast", f"-I{ROOT / 'csrc'}", *defines]
    check = TESTS / "support" / "compiled" / "native" / "engine_check.cpp"
    objects = []
    for source, own in [
        (check, []),
        *((ROOT / "csrc" / name, []) for name in SOURCES),
        *((ROOT / "csrc" / "engine" / f"kernels_{name}.cpp", KERNELS[name]) for name in kernels),
    ]:
        objects.append(folder / f"{source.stem}.o")
        subprocess.run([*flags, *own, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([compiler, *objects, "-pthread", "-ldl", "-o", folder / "check"], check=True)
    return folder / "check"


def vectors(command):
    """{(instruction set, precision): unit vectors} of what the program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        name, precision, *numbers = line.split()
        rows = np.array(numbers, np.float64).reshape(-1, 60)
        found[name, precision] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("arm"), CROSS, KERNELS, "-DMIRROR_RT_NEON")


@pytest.fixture(scope="module")
def expected(program, tmp_path_factory):
    return vectors([build(tmp_path_factory.mktemp("here"), "g++", ["portable"])])[
        "portable", "fp32"
    ]


@pytest.mark.needs("aarch64")
@pytest.mark.parametrize(
    ("processor", "kernels"), [("max", list(KERNELS)), ("cortex-a53", ["portable"])]
)
def test_vectors_of_the_kernels_that_a_processor_has(program, expected, processor, kernels):
    found = vectors([QEMU, "-cpu", processor, "-L", "/usr/aarch64-linux-gnu", program])
    assert [name for name, precision in found if precision == "fp32"] == kernels
    for (_, precision), rows in found.items():
        assert (rows * expected).sum(axis=1).min() > LEAST_COSINE[precision]
