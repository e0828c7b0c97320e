"""Choose the size of waves: how many tiles of scores the CUDA kernels compute at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Side of a square panel of fp16 weights, 254 MB: so large that the sums are rarely read and written
# again. The sums of such a wave are 176 tiles by (dimensions / 128); with the 2 blocks that each of
# the H200's 132 multiprocessors holds, these are 4 whole rounds at 768 dimensions and 2 at 384.
_PANEL_SIDE = 88
# Tiles in each direction of a wave of logsumexp: enough to keep every GPU busy, while the partial
# results take at most 2 * 128 * 128 * 128 * 8 bytes = 32 MB.
_LOGSUMEXP_SIDE = 128


@dataclass(frozen=True, slots=True)
class Waves:
    """The largest waves, in tiles.

    Attributes:
        panel_tiles: number of tiles of weights at once; None for 254 MB of them.
        logsumexp_tiles: number of tiles in each direction of a wave of logsumexp.
    """

    panel_tiles: int | None = None
    logsumexp_tiles: int = _LOGSUMEXP_SIDE

    def logsumexp(self, rows: int, columns: int, *, symmetric: bool) -> tuple[int, int]:
        """Return the tiles of rows and of columns of a wave; the problem has `rows` x `columns`."""
        return _wave(rows, columns, self.logsumexp_tiles**2, symmetric=symmetric)

    def panel(self, rows: int, columns: int, parts: int, *, symmetric: bool) -> tuple[int, int]:
        """Return the same for the weights, which have 1 or 2 parts of 16 bits."""
        tiles = self.panel_tiles or _PANEL_SIDE**2 // parts
        return _wave(rows, columns, tiles, symmetric=symmetric)


def _wave(rows: int, columns: int, tiles: int, *, symmetric: bool) -> tuple[int, int]:
    """Return how many tiles of rows and of columns a wave of at most `tiles` tiles has.

    Waves are as square as can be, because then the least is read and written between them. Those
    of a symmetric problem are squares of the full size, as far as it goes: that size fills the GPU.
    The others are of about equal size.
    """
    side = math.isqrt(tiles)
    if symmetric:
        side = min(columns, max(1, side))
        return side, side
    if rows <= columns:
        height = _even(rows, side)
        return height, _even(columns, tiles // height)
    width = _even(columns, side)
    return _even(rows, tiles // width), width


def _even(count: int, most: int) -> int:
    """Split `count` into the fewest even parts of at most `most`; return the size of a part."""
    return -(-count // -(-count // max(1, most)))
