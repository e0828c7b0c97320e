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


class RemovePadding(_Microsoft):
    def _run(self, x, lengths):
        batch, length, _ = x.shape
        assert lengths.dtype == np.int32
        assert lengths.shape == (batch,)
        places = np.arange(batch * length).reshape(batch, length)
        real = np.arange(length) < lengths[:, None]
        offsets = np.concatenate([places[real], places[~real]]).reshape(batch, length)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return x[real], offsets.astype(np.int32), starts, lengths.max(keepdims=True)


class RestorePadding(_Microsoft):
    def _run(self, x, offsets):
        batch, length = offsets.shape
        spread = np.zeros((batch * length, x.shape[1]), x.dtype)
        spread[offsets.ravel()[: len(x)]] = x
        return (spread.reshape(batch, length, -1),)


class PackedAttention(_Microsoft):
    def _run(
        self, x, weight, bias, offsets, starts, position_bias=None, num_heads=None, scale=None
    ):
        del offsets
        projected = (x.astype("f4") @ weight.astype("f4") + bias.astype("f4")).reshape(
            len(x), 3, num_heads, -1
        )
        out = np.empty((len(x), projected.shape[2] * projected.shape[3]), "f4")
        for i, (a, b) in enumerate(itertools.pairwise(starts)):
            query, key, value = projected[a:b].transpose(1, 2, 0, 3)
            scores = query @ key.transpose(0, 2, 1) * (scale or 1 / math.sqrt(query.shape[-1]))
            if position_bias is not None:
                full = np.broadcast_to(position_bias, (len(starts) - 1, *position_bias.shape[1:]))
                scores = scores + full[i, :, : b - a, : b - a]
            out[a:b] = (_softmax(scores) @ value).transpose(1, 0, 2).reshape(b - a, -1)
        return (out.astype(x.dtype),)


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
    operators = [MatMul, GatherElements, RemovePadding, RestorePadding, PackedAttention]
    operators += [SkipLayerNormalization, EmbedLayerNormalization, BiasGelu]
    return ReferenceEvaluator(str(path), new_ops=operators)
