"""Say how exact vectors are when each product in float32 is a sum of products in bfloat16.

    python benchmarks/encode/split_products.py MODEL --texts FILE [--top 100]

A number of 24 bits is the sum of two or three of 8. Three products keep the parts of 16 bits, six
keep all but the smallest; sums are in float32, as of AMX. Only the weights' products are split. The
script prints the largest difference of a component of a unit vector from plain float32.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mirror_rt.io.tables import markdown_table
from mirror_train import TorchEncoder


def parts(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Split into numbers of bfloat16, the largest first, whose sum is nearly `x`."""
    found = []
    for _ in range(count):
        found.append(x.bfloat16().float())
        x = x - found[-1]
    return found


def product(
    weights: list[torch.Tensor], bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    """Add the products of parts, the smallest first."""
    count = len(weights)
    inputs = parts(x, count)
    pairs = [(i, j) for i in range(count) for j in range(count) if i + j < count]
    y = sum(inputs[i] @ weights[j].T for i, j in sorted(pairs, key=sum, reverse=True))
    return y if bias is None else y + bias


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--top", type=int, default=100)
    arguments = parser.parse_args()
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()[: arguments.top]
    encoder = TorchEncoder.load(arguments.model, device="cpu")
    exact = encoder.encode(texts)
    rows = []
    for count, name in ((2, "three"), (3, "six")):
        for layer in encoder.pretrained.model.modules():
            if isinstance(layer, torch.nn.Linear):
                weights = parts(layer.weight.detach(), count)
                layer.forward = partial(product, weights, layer.bias)
        rows.append([name, f"{np.abs(encoder.encode(texts) - exact).max():.1e}"])
    print(markdown_table(["products", "largest difference"], rows))


if __name__ == "__main__":
    main()
