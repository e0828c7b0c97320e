"""The parts of a normalising flow (see `glow.py`), and a block folded into linear layers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from mirror_rt.errors import ModelError

# The least deviation to divide by, as a share of the root mean square of all deviations. Where a
# dimension varies less, it carries no signal and must not be amplified.
_LEAST_DEVIATION = 1e-3


class ActNorm(nn.Module):
    """A positive scale and a bias for every dimension.

    The code that BERT-CF names trains the logarithm of the scale times 3, and a further scale of
    the output. The first is a higher learning rate of the scale alone, the second belongs to the
    scale of the next block: both are left out.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(size))
        self.bias = nn.Parameter(torch.zeros(size))

    @torch.no_grad()
    def initialise(self, x: Tensor) -> Tensor:
        """Fit to `x` [n, size] so that the result has mean 0 and deviation 1 in each dimension."""
        exact = x.double()
        mean, deviation = exact.mean(dim=0), exact.std(dim=0, correction=0)
        spread = deviation.square().mean().sqrt()
        if not spread > 0:
            raise ModelError("a flow cannot be fitted: every string has the same vector")
        scale = 1 / deviation.clamp(min=_LEAST_DEVIATION * float(spread))
        self.log_scale.copy_(scale.log())
        self.bias.copy_(-mean * scale)
        return cast(Tensor, self(x))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift vectors [B, size]."""
        return x * self.log_scale.exp() + self.bias

    def folded(self, linear: Tensor) -> tuple[Tensor, Tensor]:
        """Return the float64 weight and bias of the layer `linear` [size, in] followed by this."""
        scale = self.log_scale.double().exp()
        return scale[:, None] * linear.double(), self.bias.double()


class InvertibleLinear(nn.Module):
    """A square matrix W = P L U, whose determinant is the product of U's diagonal.

    L has a diagonal of 1. P is a fixed permutation, and the signs of U's diagonal are fixed too. W
    is a random rotation at the start.
    """

    permutation: Tensor
    signs: Tensor
    below: Tensor

    def __init__(self, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        normal = torch.randn(size, size, dtype=torch.float64, generator=generator)
        p, lower, upper = torch.linalg.lu(torch.linalg.qr(normal).Q)
        diagonal = upper.diagonal()
        # Both triangles are kept in one matrix, whose diagonal is not used.
        self.triangles = nn.Parameter((lower.tril(-1) + upper.triu(1)).float())
        self.log_diagonal = nn.Parameter(diagonal.abs().log().float())
        self.register_buffer("signs", diagonal.sign().float())
        self.register_buffer("permutation", p.argmax(dim=1))
        self.register_buffer("below", torch.ones(size, size).tril(-1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply vectors [B, D] by W, without the D^3 operations of computing W itself."""
        upper, lower = self.triangles * self.below.T, self.triangles * self.below
        x = x @ upper.T + x * (self.signs * self.log_diagonal.exp())
        return (x @ lower.T + x)[:, self.permutation]

    def weight(self) -> Tensor:
        """Return W in float64."""
        exact = self.triangles.double()
        upper = exact.triu(1) + (self.signs * self.log_diagonal.double().exp()).diag()
        lower = exact.tril(-1) + torch.eye(*exact.shape).to(exact)
        return (lower @ upper)[self.permutation]


class AdditiveCoupling(nn.Module):
    """A coupling that shifts a vector's second half by a network's output for the first half."""

    def __init__(
        self, size: int, hidden_size: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        half = size // 2
        self.linear1 = _unset_linear(half, hidden_size, bias=False)
        self.norm1 = ActNorm(hidden_size)
        self.linear2 = _unset_linear(hidden_size, hidden_size, bias=False)
        self.norm2 = ActNorm(hidden_size)
        self.linear3 = _unset_linear(hidden_size, half)
        for linear in (self.linear1, self.linear2):
            nn.init.normal_(linear.weight, std=0.05, generator=generator)
        nn.init.zeros_(self.linear3.weight)
        nn.init.zeros_(self.linear3.bias)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> Tensor:
        """Fit the network's ActNorms to `x` [n, D]; return `x`, as the network's output is 0."""
        hidden = functional.relu(self.norm1.initialise(self.linear1(x.chunk(2, dim=1)[0])))
        self.norm2.initialise(self.linear2(hidden))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Shift the second half of vectors [B, D]."""
        first, second = x.chunk(2, dim=1)
        hidden = functional.relu(self.norm1(self.linear1(first)))
        hidden = functional.relu(self.norm2(self.linear2(hidden)))
        return torch.cat([first, second + self.linear3(hidden)], dim=1)


class FlowBlock(nn.Module):
    """A block of ActNorm, an invertible linear layer and an additive coupling."""

    def __init__(
        self, size: int, hidden_size: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.norm = ActNorm(size)
        self.linear = InvertibleLinear(size, generator)
        self.coupling = AdditiveCoupling(size, hidden_size, generator)

    def initialise(self, x: Tensor) -> Tensor:
        """Fit all ActNorms to `x` [n, D]; return the block's output for `x`."""
        x = self.norm.initialise(x)
        with torch.no_grad():
            x = self.linear(x)
        return self.coupling.initialise(x)

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors [B, D] to vectors [B, D], in the direction of the Gaussian."""
        return cast(Tensor, self.coupling(self.linear(self.norm(x))))

    def log_determinant(self) -> Tensor:
        """Return the logarithm of the Jacobian's absolute determinant, a scalar."""
        return self.norm.log_scale.sum() + self.linear.log_diagonal.sum()


class FoldedBlock(nn.Module):
    """A copy of a block with its current weights, folded into four linear layers in float64."""

    def __init__(self, block: FlowBlock) -> None:
        super().__init__()
        weight = block.linear.weight()
        scale = block.norm.log_scale.double().exp()
        self.linear = _linear(weight * scale, weight @ block.norm.bias.double())
        coupling = block.coupling
        self.shift = nn.Sequential(
            _linear(*coupling.norm1.folded(coupling.linear1.weight)),
            nn.ReLU(),
            _linear(*coupling.norm2.folded(coupling.linear2.weight)),
            nn.ReLU(),
            _linear(coupling.linear3.weight.double(), coupling.linear3.bias.double()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors [B, D] to vectors [B, D], in the direction of the Gaussian."""
        first, second = self.linear(x).chunk(2, dim=1)
        return torch.cat([first, second + self.shift(first)], dim=1)

    def inverse(self, z: Tensor) -> Tensor:
        """Undo `forward`."""
        first, second = z.chunk(2, dim=1)
        y = torch.cat([first, second - self.shift(first)], dim=1)
        x: Tensor = torch.linalg.solve(self.linear.weight, (y - self.linear.bias).T).T
        return x


def _unset_linear(size: int, out: int, *, bias: bool = True) -> nn.Linear:
    """Return a layer with unset weights: drawing them would advance torch's generator."""
    return cast(nn.Linear, skip_init(nn.Linear, size, out, bias=bias))  # type: ignore[no-untyped-call]


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear layer with weight [out, in] and bias [out], both float64."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
