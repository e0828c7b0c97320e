"""The kernels for AMX, with its instructions emulated in plain C++, under sanitizers."""

import numpy as np
import pytest

from mirror_rt import _core
from native_build import AMX_EMULATION, ISA_FLAGS, SANITIZED, run_check
from rounding import assert_within_gate

pytestmark = [pytest.mark.compiled, pytest.mark.needs("compiler")]

PARTS = ["isa_list", "parallel", "engine/engine", "engine/packing", "engine/run",
         "engine/kernels_avx512_vnni", "engine/kernels_avx512_amx"]  # fmt: skip


def test_tiles_multiply_as_other_kernels_do(tmp_path):
    """The program fails, too, where a text has another vector alone than in a batch."""
    flags = ["-DMIRROR_RT_X86", "-DMIRROR_RT_EMULATE", "-include", str(AMX_EMULATION), *SANITIZED,
             "-Wno-psabi", "-Wno-unused-function", "-Wno-missing-field-initializers"]  # fmt: skip
    if "avx512_vnni" in _core.engine_instruction_sets():
        flags += ISA_FLAGS["avx512_vnni"]  # compiles in half the time
    vectors = {}
    for line in run_check("tiles_check", PARTS, flags, tmp_path).splitlines():
        name, precision, *numbers = line.split()
        rows = np.array(numbers, np.float64).reshape(-1, 60)
        vectors[name, precision] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for precision in ("fp32", "int8"):  # sums of bytes are exact
        found, expected = (vectors[name, precision] for name in ("avx512_amx", "avx512_vnni"))
        np.testing.assert_array_equal(found, expected)
    for precision in ("bf16", "int8"):
        found, exact = vectors["avx512_amx", precision], vectors["avx512_amx", "fp32"]
        assert not np.array_equal(found, exact)
        assert_within_gate(found, exact, precision)
