"""InfoNCE on an NVIDIA GPU (csrc/bindings/cuda.cpp).

Tensors are addresses of device memory, 0 for none; `stream` is a cudaStream_t. Nothing is checked
here and nothing waits for the device: `mirror_train.loss.cuda_kernel` is the caller. A CUDA call
that fails raises a RuntimeError that names it.
"""

from enum import Enum

class Dtype(Enum):
    """The dtype of the embeddings."""

    float32 = 0
    float16 = 1
    bfloat16 = 2

class Batch:
    """A batch of `n` pairs and `n_hard` hard negatives: each pass, with all its steps, is one call.

    `all_n` and `all_hard` are those of all processes, or 0 in one process, as are the addresses of
    their embeddings and log weights. `panel_tiles` and `logsumexp_tiles` limit the tiles of weights
    and of a side of logsumexp that are computed at once; 0 for what suits a GPU. A pass makes the
    device current. The workspace has `forward_bytes` or `backward_bytes`, uninitialised; ranks are
    int32, of all rows and columns that belong to strings, or 0.
    """

    def __init__(
        self,
        n: int,
        n_hard: int,
        all_n: int,
        all_hard: int,
        dim: int,
        dtype: Dtype,
        one_way: bool,
        panel_tiles: int,
        logsumexp_tiles: int,
    ) -> None: ...
    @property
    def losses(self) -> int: ...
    @property
    def forward_bytes(self) -> int: ...
    @property
    def backward_bytes(self) -> int: ...
    def forward(
        self,
        device: int,
        z1: int,
        z2: int,
        hard: int,
        all1: int,
        all2: int,
        all_hard: int,
        row_ranks: int,
        column_ranks: int,
        scale: float,
        decoupled: bool,
        workspace: int,
        loss: int,
        weights: int,
        log_weights: int,
        stream: int,
        /,
    ) -> None: ...
    def backward(
        self,
        device: int,
        z1: int,
        z2: int,
        hard: int,
        all1: int,
        all2: int,
        all_hard: int,
        row_ranks: int,
        column_ranks: int,
        scale: float,
        weights: int,
        log_weights: int,
        all_log_weights: int,
        grad_output: int,
        workspace: int,
        grad1: int,
        grad2: int,
        grad_hard: int,
        stream: int,
        /,
    ) -> None: ...

def tma_obstacle(device: int) -> str:
    """Return why a device, which becomes current, cannot take the core tma; empty if it can."""

def trust_tma(device: int) -> None:
    """Make tma the default core on a device."""
