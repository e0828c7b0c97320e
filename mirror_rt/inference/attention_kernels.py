"""Which kernel onnxruntime's CUDA provider takes for an attention, by the rules of its source.

These are the rules of onnxruntime 1.31, from `contrib_ops/cuda/bert`: `packed_attention.cc`,
`packed_multihead_attention.cc`, `attention.cc`, `multihead_attention.cc`,
`attention_kernel_options.cc`, `mha_runner.cu` and `cudnn_fmha/cudnn_flash_attention.cc`. On a card,
`ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO=1` prints what really runs, under the same names;
`benchmarks/gpu_attention.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kernel = Literal[
    "FLASH_ATTENTION", "CUDNN_FLASH_ATTENTION", "EFFICIENT_ATTENTION", "TRT_FLASH_ATTENTION",
    "TRT_FUSED_ATTENTION", "MATH",
]  # fmt: skip
Operator = Literal[
    "Attention", "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention"
]  # fmt: skip

# Values of the provider option `sdpa_kernel`, which add up. One above 0 sets aside the environment
# variables, and cuDNN as the default of compute capability 9.0.
_FLASH, _EFFICIENT, _TRT_FUSED, _CUDNN, _MATH, _TRT_FLASH = 1, 2, 4, 8, 16, 32
# cuDNN builds a plan for each new number of texts and tokens, which takes longer than a run, and
# keeps it. So it is for sessions of few shapes: those that are captured as CUDA graphs.
ANY_SHAPE_KERNELS = _FLASH | _EFFICIENT | _TRT_FUSED | _MATH | _TRT_FLASH

_TRT_CAPABILITIES = {(7, 5), (8, 0), (8, 6), (8, 9)}
_TRT_FLASH_SIZES = {16, 32, 40, 64, 80, 128, 160, 256}
_TRT_FLASH_LENGTH, _TRT_FUSED_LENGTH = 385, 384


@dataclass(frozen=True, slots=True)
class Attention:
    """What the choice of a kernel depends on in the graph.

    Attributes:
        operator: with the padding, or joined, with the projections inside or apart.
        precision: dtype that it computes in.
        head_size: numbers of a head's query.
        mask: of a padded attention: the lengths of the texts, or a number for each token.
        position_bias: whether something is added to the scores.
    """

    operator: Operator
    precision: Literal["fp32", "fp16", "bf16"]
    head_size: int
    mask: Literal["lengths", "tokens"] | None = None
    position_bias: bool = False


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The kernels that options and environment allow."""

    flash: bool
    efficient: bool
    trt: bool
    trt_flash: bool
    cudnn: bool
    least_fp32_length: int

    @classmethod
    def of(
        cls, sdpa_kernel: int, environment: Mapping[str, str], capability: tuple[int, int]
    ) -> _Allowed:
        if sdpa_kernel > 0:
            bits = (_FLASH, _EFFICIENT, _TRT_FUSED, _TRT_FLASH, _CUDNN)
            flash, efficient, trt, trt_flash, cudnn = (sdpa_kernel & bit > 0 for bit in bits)
            return cls(flash, efficient, trt, trt_flash, cudnn, least_fp32_length=0)

        def told(name: str, default: bool = False) -> bool:
            return environment.get(f"ORT_{name}", str(int(default))) == "1"

        least = environment.get("ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32", "256")
        return cls(
            flash=not told("DISABLE_FLASH_ATTENTION"),
            efficient=not told("DISABLE_MEMORY_EFFICIENT_ATTENTION"),
            trt=not told("DISABLE_FUSED_ATTENTION"),
            trt_flash=not told("DISABLE_TRT_FLASH_ATTENTION"),
            cudnn=told("ENABLE_CUDNN_FLASH_ATTENTION", capability >= (9, 0)),
            least_fp32_length=int(least) if least.isdecimal() else 256,
        )


def attention_kernel(
    attention: Attention,
    *,
    capability: tuple[int, int],
    length: int,
    sdpa_kernel: int,
    environment: Mapping[str, str],
) -> Kernel:
    """Return the kernel of an attention, by the name that onnxruntime prints.

    Args:
        attention: what the graph says.
        capability: compute capability of the card.
        length: tokens of the longest text in the batch.
        sdpa_kernel: the provider option of this name; 0 where it is not given.
        environment: the variables of the process.
    """
    allowed = _Allowed.of(sdpa_kernel, environment, capability)
    size, joined = attention.head_size, attention.operator.startswith("Packed")
    half, plain = attention.precision != "fp32", not attention.position_bias
    fits = half and capability >= (8, 0) and size % 8 == 0 and size <= 256
    by_length = joined or attention.mask != "tokens"
    if not joined and allowed.cudnn and fits and by_length:
        return "CUDNN_FLASH_ATTENTION"
    # The padded operators could take it without a mask, but every graph here has one.
    if attention.operator == "PackedMultiHeadAttention" and allowed.flash and fits and plain:
        return "FLASH_ATTENTION"
    if allowed.trt and attention.precision == "fp16" and plain and by_length:
        tensorrt = _tensorrt(capability, size, length, flash=allowed.trt_flash)
        if tensorrt is not None:
            return tensorrt
    if allowed.efficient and joined and size % 8 == 0 and _takes_efficient(
        attention, length, allowed.least_fp32_length
    ):  # fmt: skip
        return "EFFICIENT_ATTENTION"
    return "MATH"


def bias_alignment(attention: Attention) -> int:
    """Return of what CUTLASS's kernel wants the tokens to be a multiple, to add to the scores."""
    return 16 if attention.precision == "fp32" else 8


def _tensorrt(
    capability: tuple[int, int], head_size: int, length: int, *, flash: bool
) -> Kernel | None:
    """Return which of the kernels of TensorRT is compiled for a card, or None."""
    if capability not in _TRT_CAPABILITIES:
        return None
    if flash and length >= _TRT_FLASH_LENGTH and head_size in _TRT_FLASH_SIZES:
        return "TRT_FLASH_ATTENTION"
    fused = head_size in (32, 64) and length <= _TRT_FUSED_LENGTH
    return "TRT_FUSED_ATTENTION" if fused else None


def _takes_efficient(attention: Attention, length: int, least_fp32_length: int) -> bool:
    half = attention.precision != "fp32"
    aligned = not attention.position_bias or length % bias_alignment(attention) == 0
    with_floats = attention.operator == "PackedMultiHeadAttention" and length >= least_fp32_length
    return aligned and (half or with_floats)
