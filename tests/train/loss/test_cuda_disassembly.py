"""What tests/compile_cuda.sh refuses in the code of the CUDA kernels."""

import pytest

from cuda_disassembly import faults, read_kernels

NAME = "_ZN12mirror_train15logsumexp_tilesINS_9WgmmaCoreELb0ENS_10{}EEEvNS_15LogsumexpParamsE"
LOOP = ["BAR.SYNC 0x0", "HGMMA.64x128x16.F32 R24, gdesc[UR20], R24", "LDGSTS.E [R9], [R6.64]"]


def kernel(loop, after, kind="BoundedSum"):
    """A kernel with a loop and what follows it, as cuobjdump prints it."""
    code = ["S2R R0, SR_TID.X", *loop, "@P0 BRA 0x10", *after, "EXIT"]
    lines = [f"        /*{16 * i:04x}*/     {text} ;   /* 0x0 */" for i, text in enumerate(code)]
    text = "\n".join(["\tcode for sm_90a", f"\t\tFunction : {NAME.format(kind)}", *lines])
    (found,) = read_kernels(text)
    return found


@pytest.mark.parametrize(
    ("loop", "after", "expected"),
    [
        (LOOP, ["MUFU.EX2 R1, R2"] * 64, []),
        (LOOP, ["MUFU.EX2 R1, R2"] * 65, ["65 exponentials for 64 elements"]),
        (LOOP, ["SHFL.BFLY PT, R1, R2"] * 31, ["31 exchanges between lanes, and 30 are enough"]),
        ([*LOOP, "@!P1 LDL R1, [R1]"], [], ["local memory in a loop"]),
        ([*LOOP, *["IADD3 R1, R1, R2, RZ"] * 100], [], ["more than 100 instructions a stage"]),
        ([LOOP[0], "HMMA.16816.F32 R1, R2, R3, R1"], [], ["a main loop without HGMMA"]),
        (LOOP[:1], [], ["0 main loops, not 1"]),
    ],
)
def test_faults(loop, after, expected):
    assert list(faults(kernel(loop, after))) == expected


def test_other_scores_may_take_more():
    found = kernel(LOOP, ["MUFU.EX2 R1, R2"] * 128, "OnlineSums")
    assert found.label == "logsumexp_tiles, wgmma, 1 part, any scores"
    assert not list(faults(found))
