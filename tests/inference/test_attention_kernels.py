"""The rules by which onnxruntime chooses an attention kernel, a row for each that matters here."""

from dataclasses import replace

import pytest

from mirror_rt.inference.attention_kernels import ANY_SHAPE_KERNELS, Attention, attention_kernel

JOINED = Attention("PackedMultiHeadAttention", "fp16", 64)
EARLIER = Attention("PackedAttention", "fp16", 64)
LENGTHS = Attention("Attention", "fp16", 32, "lengths")
TOKENS = Attention("Attention", "fp16", 32, "tokens")
APART = Attention("MultiHeadAttention", "fp16", 64, "lengths")
H200, A100, T4 = (9, 0), (8, 0), (7, 5)
FLASH, CUDNN, EFFICIENT = "FLASH_ATTENTION", "CUDNN_FLASH_ATTENTION", "EFFICIENT_ATTENTION"
FUSED, TRT_FLASH, MATH = "TRT_FUSED_ATTENTION", "TRT_FLASH_ATTENTION", "MATH"


@pytest.mark.parametrize(
    ("attention", "capability", "length", "options", "expected"),
    [
        (JOINED, H200, 16, {}, FLASH),
        (JOINED, A100, 512, {}, FLASH),
        (JOINED, T4, 128, {}, FUSED),
        (JOINED, T4, 512, {}, TRT_FLASH),
        (replace(JOINED, head_size=20), H200, 128, {}, MATH),
        (replace(JOINED, precision="fp32"), H200, 128, {}, MATH),
        (replace(JOINED, precision="fp32"), H200, 256, {}, EFFICIENT),
        (replace(JOINED, precision="fp32"), H200, 16, {"sdpa": ANY_SHAPE_KERNELS}, EFFICIENT),
        (replace(JOINED, position_bias=True), H200, 24, {}, EFFICIENT),
        (replace(JOINED, position_bias=True), H200, 23, {}, MATH),
        (JOINED, H200, 16, {"ORT_DISABLE_FLASH_ATTENTION": "1"}, EFFICIENT),
        (JOINED, H200, 16, {"sdpa": 16}, MATH),
        (EARLIER, H200, 128, {}, EFFICIENT),
        (EARLIER, A100, 128, {}, FUSED),
        (replace(EARLIER, precision="fp32"), H200, 512, {}, MATH),
        (TOKENS, H200, 128, {}, MATH),
        (TOKENS, A100, 128, {}, MATH),
        (LENGTHS, H200, 128, {}, CUDNN),
        (replace(LENGTHS, precision="bf16"), H200, 128, {}, CUDNN),
        (replace(LENGTHS, position_bias=True), H200, 23, {}, CUDNN),
        (LENGTHS, H200, 128, {"sdpa": ANY_SHAPE_KERNELS}, MATH),
        (LENGTHS, H200, 128, {"ORT_ENABLE_CUDNN_FLASH_ATTENTION": "0"}, MATH),
        (LENGTHS, A100, 128, {}, FUSED),
        (LENGTHS, A100, 128, {"ORT_ENABLE_CUDNN_FLASH_ATTENTION": "1"}, CUDNN),
        (replace(LENGTHS, precision="fp32"), H200, 128, {}, MATH),
        (APART, H200, 128, {}, CUDNN),
        (replace(APART, position_bias=True), H200, 23, {}, CUDNN),
        (APART, H200, 128, {"sdpa": ANY_SHAPE_KERNELS}, MATH),
        (replace(APART, mask="tokens"), H200, 128, {}, MATH),
        (replace(APART, precision="fp32"), H200, 512, {}, MATH),
        (APART, A100, 128, {}, FUSED),
        (replace(APART, position_bias=True), A100, 128, {}, MATH),
    ],
)  # fmt: skip
def test_the_rules(attention, capability, length, options, expected):
    environment = dict(options)
    sdpa = environment.pop("sdpa", 0)
    found = attention_kernel(
        attention, capability=capability, length=length, sdpa_kernel=sdpa, environment=environment
    )
    assert found == expected
