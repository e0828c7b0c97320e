"""Gradient caching: train on a contrastive batch of any size in the memory of one of its chunks.

A contrastive loss needs the embeddings of the whole batch at once, but the encoder does not: given
the gradient of the loss with respect to the embeddings, each chunk's share of the parameters'
gradient is independent of all other chunks (Gao et al. 2021, "Scaling Deep Contrastive Learning
Batch Size under Memory Limited Setup"). So every chunk goes through the encoder twice:

1. without an autograd graph, only to get its embeddings;
2. after the loss has given the gradient of the embeddings, again with a graph, which is freed
   before the next chunk.

Dropout must draw the same masks both times, so the state of the random generators before each
chunk is saved and restored. The result is the gradient of the uncached step, at the price of one
more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from mirror_train.compute.random_state import RandomState

Chunk = TypeVar("Chunk")


class _Cached(NamedTuple, Generic[Chunk]):
    """A chunk after the first pass; the loss leaves its gradient in `embeddings.grad`."""

    chunk: Chunk
    random: RandomState
    embeddings: Tensor


class GradCache(Generic[Chunk]):
    """The cached gradient computation of one step.

    Call `parts = first_pass(chunks)`, then `loss(parts).backward()`, then `second_pass()`.
    The loss may be computed and scaled as usual: under automatic mixed precision, scale it once
    (`GradScaler.scale(loss).backward()`) and the parameters' gradients carry that scale, ready for
    `GradScaler.step`.

    `encode` maps one chunk to its embeddings [rows, D]. It is called twice for every chunk, with
    the generators in the same state, and must return the same result both times: it may draw from
    torch's default generators of the CPU and of `device`, and from nothing else. Enter autocast
    inside it, or around both passes.
    """

    def __init__(self, encode: Callable[[Chunk], Tensor], *, device: torch.device) -> None:
        self._encode, self._device = encode, device
        self._cached: list[_Cached[Chunk]] = []

    def first_pass(self, chunks: Iterable[Chunk]) -> list[Tensor]:
        """Return the embeddings of every chunk, each a leaf [rows, D] in the dtype of `encode`.

        The chunks kept by an earlier call are forgotten.
        """
        self._cached = []
        for chunk in chunks:
            random = RandomState.now(self._device)
            with torch.no_grad():
                embeddings = self._encode(chunk)
            self._cached.append(_Cached(chunk, random, embeddings.requires_grad_()))
        # An autocast context around both passes caches 16-bit copies of the weights. Those of the
        # first pass have no graph, so the second pass must not use them.
        torch.clear_autocast_cache()
        return [cached.embeddings for cached in self._cached]

    def second_pass(self) -> None:
        """Backpropagate the gradient of the embeddings into the parameters' `grad`.

        The generators are left as they were found.
        """
        cached, self._cached = self._cached, []
        with RandomState.kept(self._device):
            for chunk, random, embeddings in cached:
                if embeddings.grad is None:
                    raise RuntimeError("second_pass() before the loss's backward()")
                random.restore(self._device)
                torch.autograd.backward(self._encode(chunk), embeddings.grad)
