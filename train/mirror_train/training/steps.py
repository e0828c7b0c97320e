"""The steps that a system gives the training loop, each of parts with a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from mirror_rt.tokens.padding import RaggedTokens


class Part(NamedTuple):
    """A part of a step, backpropagated before the next, so that memory holds one graph."""

    # This process's share of the rows: their tokens, which go through the encoder, or vectors [n,
    # D] that are known already.
    inputs: RaggedTokens | Tensor
    # Maps the vectors [n, D] of these rows, in the dtype of the encoder's output, to the share's
    # loss, a scalar. The mean over the processes is the loss of the part.
    loss: Callable[[Tensor], Tensor]
    cut: int = 0  # rows that lost tokens to the limit


@dataclass(frozen=True, slots=True)
class Steps:
    """The optimiser steps of a run: each is the sum of its parts, and follows from its number."""

    total: int
    parts: Callable[[int], Iterable[Part]]  # gives the parts of a step
