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

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from mirror_train.compute.random_state import RandomState

Chunk = TypeVar("Chunk")
T = TypeVar("T")


def backward_in_chunks(
    encode: Callable[[Chunk], Tensor],
    chunks: Sequence[Chunk],
    backward: Callable[[list[Tensor]], T],
    *,
    device: torch.device,
) -> T:
    """Compute the gradients of a step; return the result of `backward`.

    Args:
        encode: maps a chunk to its embeddings [rows, D]. It is called twice for every chunk, with
            the generators in the same state, and must return the same result both times: it may
            draw from torch's default generators of the CPU and of `device`, and from nothing else.
            Enter autocast inside it, or around this call.
        chunks: the parts of the batch.
        backward: backpropagates the loss of the chunks' embeddings, leaves in the dtype of
            `encode`. Under automatic mixed precision, scale the loss once: the parameters'
            gradients carry that scale, ready for `GradScaler.step`.
        device: whose generators are drawn from. They are left as `backward` leaves them.
    """
    states, embeddings = [], []
    for chunk in chunks:
        states.append(RandomState.now(device))
        with torch.no_grad():
            embeddings.append(encode(chunk).requires_grad_())
    # An autocast context around both passes caches 16-bit copies of the weights. Those of the
    # first pass have no graph, so the second pass must not use them.
    torch.clear_autocast_cache()
    found = backward(embeddings)
    with RandomState.kept(device):
        for chunk, state, z in zip(chunks, states, embeddings, strict=True):
            state.restore(device)
            torch.autograd.backward(encode(chunk), z.grad)
    return found
