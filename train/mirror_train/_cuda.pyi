"""InfoNCE on an NVIDIA GPU (csrc/bindings/cuda.cpp).

Tensors are addresses of device memory, 0 for none; `stream` is a cudaStream_t. Nothing is checked
here and nothing waits for the device: `mirror_train.loss.cuda_kernel` is the caller. A CUDA call
that fails raises a RuntimeError that names it.
"""

from enum import Enum

TILE: int
ROWS_PER_BLOCK: int
COLUMN_PARTS: int

_Blocks = list[tuple[int, int]]  # (address, rows)

class Dtype(Enum):
    """The dtype of the embeddings."""

    float32 = 0
    float16 = 1
    bfloat16 = 2

class Rows:
    """Unit rows, fp16 [count rounded up to TILE, parts * stride], and their norms, fp32 [count].

    `split` says that an element has two parts, as of float32 embeddings, and not one.
    """

    def __init__(
        self, unit: int, norms: int, count: int, dim: int, stride: int, split: bool
    ) -> None: ...

class Negatives:
    """See `mirror_train.loss.kernel.Negatives`; ranks are int32, equal exactly where ids are."""

    def __init__(
        self, n_rows: int, n_columns: int, period: int, row_ranks: int, column_ranks: int
    ) -> None: ...

class Pairs:
    """See `mirror_train.loss.kernel.Pairs`."""

    def __init__(self, count: int, shift: int, mutual: bool) -> None: ...

class Batch:
    """A batch in one process: each pass, with all its steps, is one call.

    A pass makes the device current. The workspace has `forward_bytes` or `backward_bytes`; `ranks`
    are int32, of all rows that have a loss.
    """

    def __init__(
        self,
        n: int,
        n_hard: int,
        dim: int,
        dtype: Dtype,
        one_way: bool,
        logsumexp_wave: tuple[int, int],
        panel_wave: tuple[int, int],
    ) -> None: ...
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
        ranks: int,
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
        ranks: int,
        scale: float,
        weights: int,
        log_weights: int,
        grad_output: int,
        workspace: int,
        grad1: int,
        grad2: int,
        grad_hard: int,
        stream: int,
        /,
    ) -> None: ...

def set_device(device: int) -> None:
    """Make a device current for this thread, unless it is."""

def sm90_obstacle() -> str:
    """Return why the current device cannot take the cores wgmma and tma; empty if it can."""

def trust_core(device: int, core: str) -> None:
    """Make "wgmma" or "tma" the default core on a device; tma comes before wgmma."""

def normalize(blocks: _Blocks, dtype: Dtype, rows: Rows, stream: int) -> None:
    """Write `rows` from at most three blocks."""

def logsumexp(
    rows: Rows,
    columns: Rows,
    negatives: Negatives,
    scale: float,
    wave: tuple[int, int],
    row_partials: int,
    column_partials: int,
    state: int,
    n: int,
    stream: int,
) -> None:
    """Write n; `wave` is how many tiles of rows and columns the workspaces hold."""

def objective(
    rows: Rows,
    partners: Rows,
    pairs: Pairs,
    n: int,
    scale: float,
    decoupled: bool,
    factor: float,
    loss: int,
    weights: int,
    log_weights: int,
    work: int,
    stream: int,
) -> None:
    """Write the loss, weights and log weights."""

def contract(
    rows: Rows,
    columns: Rows,
    negatives: Negatives,
    row_log_weights: int,
    column_log_weights: int,
    scale: float,
    wave: tuple[int, int],
    panel: int,
    row_sums: int,
    column_sums: int,
    stream: int,
) -> None:
    """Write the weighted sums; `wave` is how many tiles of rows and columns the panel holds."""

def finish(
    sums: int,
    rows: Rows,
    partners: Rows,
    pairs: Pairs,
    weights: int,
    factor: float,
    grad_output: int,
    gradients: _Blocks,
    dtype: Dtype,
    stream: int,
) -> None:
    """Write the gradients of the blocks of `rows`."""
