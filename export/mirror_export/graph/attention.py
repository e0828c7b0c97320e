"""Trace modules directly as onnxruntime's operators, instead of finding their patterns later.

An attention is a dozen nodes (transposes, scaling, mask, softmax), which look different in every
release of torch and transformers, so patterns that recognise it would have to follow each
release. But transformers lets us register an attention by name, and torch lets us emit an ONNX
operator by name; so a model traced inside `fused_attention` holds one
com.microsoft.MultiHeadAttention per layer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import NewGELUActivation
from transformers.masking_utils import bidirectional_mask_function
from transformers.models.modernbert.modeling_modernbert import (
    ModernBertAttention,
    ModernBertRotaryEmbedding,
)
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

from mirror_rt.bundle.families import family_of

_NAME = "mirror_rt_onnxruntime"
# This is added to the scores of keys outside of a local window, as by onnxruntime's own masks:
# unlike the most negative number, it is in the range of float16.
_FAR = -10_000.0


@contextlib.contextmanager
def fused_attention(model: Any) -> Iterator[None]:
    """Let `model` (a transformers encoder) be traced with fused attention, if its family allows.

    Inside this context the model cannot be run: the operators have a shape, but no PyTorch code.
    """
    with (
        # The same formula as a single ONNX operator.
        _replaced(NewGELUActivation, lambda _, x: functional.gelu(x, approximate="tanh")),
        _replaced(MPNetSelfAttention, _mpnet_attention),
        _replaced(ModernBertRotaryEmbedding, _modernbert_tables),
        _replaced(ModernBertAttention, _modernbert_attention),
    ):
        if not family_of(model).attention_interface:
            yield
            return
        AttentionInterface.register(_NAME, _interface_attention)
        AttentionMaskInterface.register(_NAME, _mask)
        own = model.config._attn_implementation
        # Its setter refuses ModernBERT before transformers 5.8.
        model.config._attn_implementation = _NAME
        try:
            yield
        finally:
            model.config._attn_implementation = own


@contextlib.contextmanager
def _replaced(module: type[torch.nn.Module], forward: Callable[..., Any]) -> Iterator[None]:
    own = module.forward
    module.forward = forward
    try:
        yield
    finally:
        module.forward = own


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, bias: Tensor | None
) -> Tensor:
    """Compute the attention of queries, keys and values [B, H, L, d] as one node: [B, L, H * d].

    The mask [B, L] is 0 or False for padding; the bias [B, H, L, L] is added to the scaled scores.
    """
    batch, heads, length, size = query.shape
    query, key, value = (
        x.transpose(1, 2).reshape(batch, length, heads * size) for x in (query, key, value)
    )
    return _attend_joined(query, key, value, mask, heads, scale, bias)


def _attend_joined(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    heads: int,
    scale: float,
    bias: Tensor | None,
) -> Tensor:
    """Do the same for queries, keys and values [B, L, H * d]; the bias may be [1, 1, L, L]."""
    extra = () if bias is None else (bias,)
    return torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (query, key, value, None, mask.to(torch.int32), *extra),
        {"num_heads": heads, "scale": scale},
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )


def _interface_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend, with the signature of transformers' interface: [B, H, L, d] to [B, L, H, d]."""
    batch, heads, length, size = query.shape
    scale = 1 / math.sqrt(size) if scaling is None else float(scaling)
    attended = _attend(query, key, value, attention_mask, scale, None)
    return attended.view(batch, length, heads, size), None


def _mask(
    *_: Any, attention_mask: Tensor, mask_function: Any, q_length: int, config: Any, **__: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the mask unchanged, bool [B, L], instead of expanding it to [B, 1, L, L].

    With it goes for local attention, which ModernBERT alone has here, a bias [1, 1, L, L] of the
    scores.
    """
    if mask_function is bidirectional_mask_function:
        return attention_mask
    place = torch.arange(q_length)
    far = (place[:, None] - place).abs() > config.sliding_window
    return attention_mask, (far.to(torch.float32) * _FAR)[None, None]


def _modernbert_tables(
    self: Any, x: Tensor, position_ids: Tensor, layer_type: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Stand in for ModernBertRotaryEmbedding.forward, for onnxruntime's RotaryEmbedding.

    Return the positions [B, L], and cosines and sines [L, d / 2] by position.
    """
    frequencies = getattr(self, f"{layer_type}_inv_freq").float()
    scale = getattr(self, f"{layer_type}_attention_scaling")
    angles = position_ids[0, :, None].float() * frequencies
    positions = position_ids.expand(x.shape[0], -1)
    return positions, (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)


def _modernbert_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, ...],
    attention_mask: Tensor | tuple[Tensor, Tensor],
    **_: Any,
) -> tuple[Tensor, None]:
    """Stand in for ModernBertAttention.forward, which rotates queries and keys by position."""
    mask, bias = attention_mask if isinstance(attention_mask, tuple) else (attention_mask, None)
    query, key, value = self.Wqkv(hidden_states).chunk(3, dim=-1)
    query, key = (
        torch.onnx.ops.symbolic(
            "com.microsoft::RotaryEmbedding",
            (x, *position_embeddings),
            {"interleaved": 0},
            dtype=x.dtype,
            shape=x.shape,
            version=1,
        )
        for x in (query, key)
    )
    size = self.head_dim
    attended = _attend_joined(query, key, value, mask, query.shape[-1] // size, size**-0.5, bias)
    return self.Wo(attended), None


def _mpnet_attention(
    self: Any, hidden_states: Tensor, attention_mask: Tensor, position_bias: Tensor, **_: Any
) -> tuple[Tensor]:
    """Stand in for MPNetSelfAttention.forward, which adds a relative position bias to the scores.

    `attention_mask` is [B, 1, 1, L]: 0, or the most negative number for padding.
    """
    batch, length, _width = hidden_states.shape
    shape = (batch, length, self.num_attention_heads, self.attention_head_size)
    query, key, value = (
        project(hidden_states).view(shape).transpose(1, 2) for project in (self.q, self.k, self.v)
    )
    scale = 1 / math.sqrt(self.attention_head_size)
    mask = attention_mask[:, 0, 0] >= 0
    return (self.o(_attend(query, key, value, mask, scale, position_bias)),)
