r"""Check on real rows whether the heads of a bundle predict the same as PyTorch.

    mirror-rt train multitask --data ../shared/data/pairs --out tuned --steps 150 \
        --learning-rate 5e-5
    mirror-rt export tuned --out bundle
    python benchmarks/encode/heads.py tuned bundle --data ../shared/data/pairs

The rows are those that training held out. Three kinds of labels are compared: those of PyTorch's
encoder and layers in float32, those of numpy's heads on PyTorch's vectors, and the bundle's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from mirror_rt.heads.predictor import Predictor, score_predictions
from mirror_rt.heads.task_heads import Heads, TaskHead
from mirror_rt.io.tables import markdown_table
from mirror_train import TorchEncoder
from mirror_train.systems import load_multitask_data


def torch_scores(head: TaskHead, u: np.ndarray, v: np.ndarray | None) -> np.ndarray:
    """Compute a head as PyTorch does in training: probabilities, similarities or values."""
    weight, bias = torch.from_numpy(head.weight), torch.from_numpy(head.bias)
    first = functional.linear(torch.from_numpy(u), weight, bias)
    if v is None:
        return functional.softmax(first, dim=1).numpy()
    second = functional.linear(torch.from_numpy(v), weight, bias)
    y = functional.cosine_similarity(first, second).clamp(min=head.hinge)
    if head.scale is not None:
        low, high = head.scale
        y = low + (y - head.hinge) / (1 - head.hinge) * (high - low)
    return y.numpy()


def torch_labels(head: TaskHead, scores: np.ndarray) -> list[str | None]:
    if head.scale is not None:
        return [None] * len(scores)
    classes = scores.argmax(axis=1) if scores.ndim == 2 else scores >= (1 + head.hinge) / 2
    return [head.labels[int(i)] for i in classes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tuned", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the folder it was tuned on")
    parser.add_argument("--seed", type=int, default=11711, help="of that run")
    parser.add_argument("--top", type=int, help="of that run")
    arguments = parser.parse_args()
    heads, encoder = Heads.read(arguments.tuned), TorchEncoder.load(arguments.tuned)
    bundle = Predictor.load(arguments.bundle)
    data = load_multitask_data(
        arguments.data, tasks=list(heads.by_name), top=arguments.top, seed=arguments.seed
    )
    table = []
    for name, part in data.tasks.items():
        head, rows = heads.get(name), part.dev
        sides = [rows.first] if rows.second is None else [rows.first, rows.second]
        vectors = [encoder.encode(side, normalize_embeddings=False) for side in sides]
        scores = torch_scores(head, vectors[0], vectors[1] if len(vectors) > 1 else None)
        found = bundle.predict(name, rows.items())
        other = sum(a != b for a, b in zip(found.labels, torch_labels(head, scores), strict=True))
        metrics = score_predictions(head, found, rows.targets)
        shown = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())
        difference = np.abs(found.scores - scores).max()
        table.append([name, str(len(rows)), str(other), f"{difference:.1e}", shown])
    header = ["task", "rows", "other labels", "largest difference", "metrics of the bundle"]
    print(markdown_table(header, table))


if __name__ == "__main__":
    main()
