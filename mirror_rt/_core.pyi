"""Native hot loops of mirror_rt (csrc/bindings.cpp)."""

import numpy as np
import numpy.typing as npt

def flatten(
    sequences: list[list[int]],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Concatenate lists of token ids: (ids int32 [T], offsets int64 [n + 1])."""

def pad_rows(
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    *,
    pad_id: int,
    length: int = -1,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Right-pad chosen sequences: (input_ids, attention_mask, token_type_ids).

    Each is int64 [len(rows), length]; length -1 means the longest chosen row.
    """
