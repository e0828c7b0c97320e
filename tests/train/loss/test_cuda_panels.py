"""The panels of weights: of the size whose sums an H100's multiprocessors share out evenly."""

import pytest

pytestmark = [pytest.mark.full, pytest.mark.compiled]

TILE, MULTIPROCESSORS, LARGEST = 128, 132, 254e6
# Width -> outputs of the tma core for a tile of rows: 192, 256, 256 and 128 dimensions each.
OUTPUTS = {384: 2, 768: 3, 1024: 4, 640: 5}


def efficiency(rows, outputs, side):
    """Count the share of the time in which multiprocessors have sums of a symmetric problem."""
    tiles, work, time = rows // TILE, 0, 0
    for row in range(0, tiles, side):
        for column in range(row, tiles, side):
            height, width = (min(side, tiles - start) for start in (row, column))
            depths = [width] * width if row == column else [width] * height + [height] * width
            sums = [depth for depth in depths for _ in range(outputs)]
            # Blocks take turns, as in for_each_output of infonce/gpu/tma_kernels.cuh.
            time += max(sum(sums[i::MULTIPROCESSORS]) for i in range(MULTIPROCESSORS))
            work += sum(sums)
    return work / (MULTIPROCESSORS * time)


@pytest.mark.parametrize("dim", OUTPUTS)
@pytest.mark.parametrize("rows", [16_384, 65_536, 262_144])
def test_the_side_is_the_better_by_count(emulation, rows, dim):
    def workspace(panel_tiles):
        dtype = emulation.Dtype.bfloat16
        return emulation.Batch(rows // 2, 0, 0, 0, dim, dtype, False, panel_tiles, 0).backward_bytes

    counted = {side: efficiency(rows, OUTPUTS[dim], side) for side in (62, 66, 88)}
    chosen = workspace(0)
    assert chosen == workspace(max(counted, key=counted.get) ** 2)
    assert chosen - workspace(1) < LARGEST
    assert max(counted.values()) > 0.85
