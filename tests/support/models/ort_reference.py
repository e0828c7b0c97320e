"""Implement onnxruntime's operators in numpy, by its documentation, to run graphs for CUDA."""

from __future__ import annotations

import itertools
import math

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


class _Microsoft(OpRun):
    op_domain = "com.microsoft"


def _normalised(x, gamma, beta, epsilon):
    x = x.astype("f4")
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return scaled * gamma + beta


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class MatMul(OpRun):
    """Adds up in float32, as CUDA does, and numpy does not for 16 bits."""

    op_domain = ""

    def _run(self, a, b):
        return ((a.astype("f4") @ b.astype("f4")).astype(a.dtype),)


class GatherElements(OpRun):
    """Takes negative axes, which onnx's own implementation confuses."""

    op_domain = ""

    def _run(self, data, indices, axis=0):
        return (np.take_along_axis(data, indices, axis),)


class PackedMultiHeadAttention(_Microsoft):
    def _run(
        self,
        query,
        key,
        value,
        bias,
        offset,
        starts,
        position_bias=None,
        num_heads=None,
        scale=None,
    ):
        assert offset.dtype == starts.dtype == np.int32
        assert len(starts) == len(offset) + 1
        biases = (np.zeros(1),) * 3 if bias is None else np.split(bias, 3)
        apart = [
            (x.astype("f4") + b.astype("f4")).reshape(len(x), num_heads, -1)
            for x, b in zip((query, key, value), biases, strict=True)
        ]
        out = np.full(query.shape, np.nan, "f4")  # tokens of no text are never written
        for i, (a, b) in enumerate(itertools.pairwise(starts)):
            q, k, v = (x[a:b].transpose(1, 0, 2) for x in apart)
            scores = q @ k.transpose(0, 2, 1) * (scale or 1 / math.sqrt(q.shape[-1]))
            if position_bias is not None:
                full = np.broadcast_to(position_bias, (len(offset), *position_bias.shape[1:]))
                scores = scores + full[i, :, : b - a, : b - a]
            out[a:b] = (_softmax(scores) @ v).transpose(1, 0, 2).reshape(b - a, -1)
        return (out.astype(query.dtype),)


class RotaryEmbedding(_Microsoft):
    def _run(self, x, places, cosine, sine, interleaved=None, **_unset):
        assert places.shape == x.shape[:2]
        assert len(cosine) > places.max()
        assert not interleaved
        heads = x.astype("f4").reshape(*x.shape[:2], -1, 2, cosine.shape[1])
        first, second = heads[..., 0, :], heads[..., 1, :]
        c, s = (table.astype("f4")[places][:, :, None] for table in (cosine, sine))
        rotated = np.stack([first * c - second * s, second * c + first * s], axis=3)
        return (rotated.reshape(x.shape).astype(x.dtype),)


class SkipLayerNormalization(_Microsoft):
    def _run(self, x, skip, gamma, beta, bias, epsilon=None):
        assert x.dtype == skip.dtype == np.float32
        return (_normalised(x + skip + bias, gamma, beta, epsilon),)


class EmbedLayerNormalization(_Microsoft):
    def _run(self, ids, types, words, places, kinds, gamma, beta, _mask, positions, epsilon=None):
        total = words[ids] + places[positions]
        if kinds is not None:
            total = total + kinds[types]
        return _normalised(total, gamma, beta, epsilon), np.zeros(len(ids), np.int32)


class BiasGelu(_Microsoft):
    def _run(self, x, bias):
        y = (x + bias).astype("f4")
        return ((y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2).astype(x.dtype),)


def evaluator(path) -> ReferenceEvaluator:
    operators = [MatMul, GatherElements, PackedMultiHeadAttention, RotaryEmbedding]
    operators += [SkipLayerNormalization, EmbedLayerNormalization, BiasGelu]
    return ReferenceEvaluator(str(path), new_ops=operators)
