"""What tests/compile_cuda.sh refuses in the code of the CUDA kernels."""

import pytest

from cuda_disassembly import faults, read_kernels

NAME = "_ZN12mirror_train15logsumexp_tilesINS_7MmaCoreILi4EEELb1ENS_10{}EEEvNS_15LogsumexpParamsE"
LOOP = ["BAR.SYNC 0x0", "HMMA.16816.F32 R1, R2, R3, R1", "LDGSTS.E [R9], [R6.64]"]


TMA_NAME = "_ZN12mirror_train19tma_logsumexp_tilesILb0ENS_10BoundedSumEEEvNS_9TmaParamsE"
TMA_LOOP = ["SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9+URZ], R8",
            *["HGMMA.64x256x16.F32 R24, gdesc[UR12], R24"] * 4]  # fmt: skip
TMA_AFTER = ["USETMAXREG.DEALLOC.CTAPOOL 0x18", "UTMALDG.2D [UR16], [UR8]"]


def kernel(loop, after, kind="BoundedSum", name=NAME):
    """A kernel with a loop and what follows it, as cuobjdump prints it."""
    code = ["S2R R0, SR_TID.X", *loop, "@P0 BRA 0x10", *after, "EXIT"]
    lines = [f"        /*{16 * i:04x}*/     {text} ;   /* 0x0 */" for i, text in enumerate(code)]
    text = "\n".join(["\tcode for sm_90a", f"\t\tFunction : {name.format(kind)}", *lines])
    (found,) = read_kernels(text)
    return found


@pytest.mark.parametrize(
    ("loop", "after", "expected"),
    [
        (LOOP, ["MUFU.EX2 R1, R2"] * 64, []),
        (LOOP, ["MUFU.EX2 R1, R2"] * 65, ["65 exponentials for 64 elements"]),
        (LOOP, ["SHFL.BFLY PT, R1, R2"] * 31, ["31 exchanges between lanes, and 30 are enough"]),
        ([*LOOP, "@!P1 LDL R1, [R1]"], [], ["local memory in a loop"]),
        ([*LOOP, *["IADD3 R1, R1, R2, RZ"] * 210], [], ["more than 210 instructions a stage"]),
        (LOOP[:1], [], ["0 main loops, not 1"]),
    ],
)
def test_faults(loop, after, expected):
    assert list(faults(kernel(loop, after))) == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (["MUFU.EX2 R1, R2"] * 128, []),
        (["MUFU.EX2 R1, R2"] * 129, ["129 exponentials for 128 elements"]),
        (["BRA 0x20"], []),  # back from waiting into the loop
        (["WARPSYNC.COLLECTIVE R24, 0x40", *["SHFL.BFLY PT, R1, R2"] * 61], []),
    ],
)
def test_faults_of_the_tma_core(after, expected):
    assert list(faults(kernel(TMA_LOOP, [*TMA_AFTER, *after], name=TMA_NAME))) == expected


def test_the_tma_core_multiplies_by_wgmma():
    found = list(faults(kernel([TMA_LOOP[0], LOOP[1]], TMA_AFTER, name=TMA_NAME)))
    assert found == ["a main loop without HGMMA"]


def test_the_tma_core_needs_its_instructions():
    found = list(faults(kernel(TMA_LOOP, [], name=TMA_NAME)))
    assert [fault.split()[1] for fault in found] == ["UTMALDG:", "USETMAXREG:"]


@pytest.mark.parametrize(
    ("across", "expected"), [(2, "200 instructions a stage"), (4, "code that nothing calls")]
)
def test_an_architecture_has_one_shape_of_warps(across, expected):
    """Of 16-bit rows: 64 x 64 elements from sm_80 on."""
    name = NAME.replace("Li4E", f"Li{across}E").replace("Lb1E", "Lb0E")
    loop = ["BAR.SYNC 0x0", *["HMMA.16816.F32 R1, R2, R3, R1"] * 201]
    (found,) = faults(kernel(loop, ["MUFU.EX2 R1, R2"] * 128, name=name))
    assert expected in found


def test_other_scores_may_take_more():
    found = kernel(LOOP, ["MUFU.EX2 R1, R2"] * 128, "OnlineSums")
    assert found.label == "logsumexp_tiles, mma, 2 parts, any scores"
    assert not list(faults(found))
