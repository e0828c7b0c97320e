"""A normalising flow after the pooling, which maps text vectors to a standard Gaussian and back.

Glow (Kingma and Dhariwal 2018) on vectors instead of images, as BERT-flow (Li et al. 2020) and
BERT-CF (Hu, section 4.2) use it. In the direction from data to Gaussian, a block consists of:

    ActNorm            u = s * x + b
    invertible linear  y = W u, the 1x1 convolution of an image of one pixel, with W = P L U
    additive coupling  z = [y_1; y_2 + NN(y_1)], where y_1 is the first d = D / 2 dimensions

NN has three layers, with ActNorm and ReLU after the first two, and is 0 at the start. All parts
scale every vector alike, so ln |det dz/dx| is the same number for all vectors.

The sources differ. BERT-flow and its PyTorch version, which BERT-CF builds on, permute the
dimensions where Glow and BERT-CF's text have W; and they have three levels of three blocks, each of
which splits off half of the dimensions, where BERT-CF's text has three blocks. By default this
module follows BERT-CF's text, with BERT-flow's hidden size of 32; `levels` splits. BERT-CF's
formula for the coupling, v_2 = AC(u_2), cannot be inverted, so this module uses Glow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from mirror_rt.bundle.declared_keys import DeclaredFile
from mirror_rt.errors import ConfigError, ModelError
from mirror_rt.io.atomic import write_json
from mirror_train.model.dense import load_weights, read_weights, save_weights
from mirror_train.model.glow_blocks import FlowBlock, FoldedBlock


def check_flow_size(size: int, levels: int = 1) -> None:
    """Raise ConfigError unless a flow can take vectors of `size` dimensions."""
    if size < 2 or size % 2:
        raise ConfigError(
            f"a flow needs vectors of an even number of dimensions, got {size}: its coupling "
            "halves them"
        )
    if levels < 1 or size % 2**levels:
        raise ConfigError(
            f"a flow of {levels} levels needs vectors of a multiple of {2**levels} dimensions, got "
            f"{size}: each halves them"
        )


class Flow(nn.Module):
    """A flow from text vectors to a standard Gaussian, made of blocks.

    When evaluation mode is entered, each block is folded into four linear layers, which also go
    into an ONNX graph; call `eval()` again after the weights change. The inverse of this
    mode's output is exact to 1e-5 for vectors of text encoders; in training mode the rounding of
    L and U adds to the error.
    """

    def __init__(
        self,
        size: int,
        *,
        blocks: int = 3,
        levels: int = 1,
        hidden_size: int = 32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_flow_size(size, levels)
        if blocks < 1 or hidden_size < 1:
            raise ConfigError(
                f"a flow needs at least 1 block and 1 hidden unit, got {blocks} and {hidden_size}"
            )
        self.size, self.hidden_size, self.levels = size, hidden_size, levels
        self.blocks = nn.ModuleList(
            FlowBlock(size >> level, hidden_size, generator)
            for level in range(levels)
            for _ in range(blocks)
        )
        self.folded: nn.ModuleList | None = None

    @classmethod
    def load(cls, *_: object, **__: object) -> Flow:
        """Raise ModelError when sentence-transformers calls this method to load a module."""
        raise ModelError(
            "a Flow is no module of sentence-transformers: load the folder with "
            "mirror_train.TorchEncoder, or export it with mirror-rt export"
        )

    def train(self, mode: bool = True) -> Flow:
        """Enter training mode, or evaluation mode with the current weights folded."""
        super().train(mode)
        if mode:
            self.folded = None
            return self
        with torch.no_grad():
            dtype = self._blocks()[0].norm.bias.dtype
            self.folded = nn.ModuleList(FoldedBlock(block).to(dtype) for block in self._blocks())
        return self

    def initialise(self, x: Tensor) -> None:
        """Fit all ActNorms to float32 vectors [n, D], block after block.

        Glow uses the first batch. A batch of texts is too small to estimate the deviations well, so
        give more vectors than that.
        """
        self._through(x, [block.initialise for block in self._blocks()])

    def forward(self, x: Tensor) -> Tensor:
        """Map text vectors [B, D] to Gaussian vectors [B, D]."""
        return self._through(x, list(self.blocks if self.folded is None else self.folded))

    def _through(self, x: Tensor, blocks: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
        """Apply all blocks; the second half of a level's vectors does not enter the next level."""
        done: list[Tensor] = []
        for i, block in enumerate(blocks):
            if i and i % (len(blocks) // self.levels) == 0:
                x, rest = x.chunk(2, dim=1)
                done.insert(0, rest)
            x = block(x)
        return torch.cat([x, *done], dim=1) if done else x

    @torch.no_grad()
    def inverse(self, z: Tensor) -> Tensor:
        """Map Gaussian vectors [B, D] to text vectors in the dtype of `z`; compute in float64."""
        exact, blocks = z.double(), self._blocks()
        x = exact[:, : self.size >> (self.levels - 1)]
        for i in reversed(range(len(blocks))):
            x = FoldedBlock(blocks[i]).inverse(x)
            if i and i % (len(blocks) // self.levels) == 0:
                x = torch.cat([x, exact[:, x.shape[1] : 2 * x.shape[1]]], dim=1)
        return x.to(z.dtype)

    def log_determinant(self) -> Tensor:
        """Return ln |det dz/dx|, a scalar that is the same for every x."""
        return torch.stack([block.log_determinant() for block in self._blocks()]).sum()

    def _blocks(self) -> list[FlowBlock]:
        return [cast(FlowBlock, block) for block in self.blocks]


def save_flow(flow: Flow, folder: Path) -> None:
    """Write a flow into the empty `folder`."""
    config = {
        "in_features": flow.size,
        "blocks": len(flow.blocks) // flow.levels,
        "levels": flow.levels,
        "hidden_size": flow.hidden_size,
    }
    write_json(folder / "config.json", config)
    save_weights(flow.blocks, folder)


def load_flow(declared: DeclaredFile) -> Flow:
    """Load a flow that `save_flow` wrote, of which the configuration is given, for evaluation."""
    folder, config = declared.path.parent, declared.values
    weights = read_weights(folder)
    held = sum(weight.numel() for weight in weights.values())
    try:
        size, blocks, hidden = (int(config[k]) for k in ("in_features", "blocks", "hidden_size"))
        levels = int(config.get("levels", 1))
        if (
            levels > 64 or blocks * (size**2 + hidden**2) > held
        ):  # refused before they take memory and time
            raise ValueError(f"{blocks} blocks of {size} and {hidden}, and {held} weights")
        generator = torch.Generator()  # leaves torch's alone; the weights drawn are overwritten
        flow = Flow(size, blocks=blocks, levels=levels, hidden_size=hidden, generator=generator)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder} is not a Flow module: {error}") from error
    load_weights(flow.blocks, weights, folder, noun="Flow")
    for block in flow.blocks:
        linear = cast(FlowBlock, block).linear
        if not torch.equal(linear.permutation.sort().values, torch.arange(len(linear.signs))):
            raise ModelError(f"{folder}: the weight permutation is not a permutation")
        if not bool((linear.signs.abs() == 1).all()):
            raise ModelError(f"{folder}: the weight signs holds other numbers than 1 and -1")
    return flow.requires_grad_(False).eval()
