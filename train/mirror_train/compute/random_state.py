"""Save and restore the state of torch's generators, to draw the same dropout twice."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor


class RandomState(NamedTuple):
    """The states of the generators that a forward pass may draw from."""

    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """Return the state of the CPU's default generator and, if `device` is a GPU, of its own."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda)

    @staticmethod
    def kept(device: torch.device) -> AbstractContextManager[None]:
        """Return a context that leaves the generators as it found them."""
        devices = [device] if device.type == "cuda" else []
        return torch.random.fork_rng(devices=devices)

    def restore(self, device: torch.device) -> None:
        """Reset the generators to these states."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
