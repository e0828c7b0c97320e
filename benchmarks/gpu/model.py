"""Prepare the models of benchmarks/gpu.sh: those that came with the parts, and one of base size.

    python benchmarks/gpu/model.py PARTS MODELS

This unpacks models/NAME.tar.xz of the parts as MODELS/NAME, and makes MODELS/base from
MODELS/minilm: it repeats every layer and every neuron of all-MiniLM-L6-v2 to get the size of
BERT-base (12 layers, 768 dimensions, 12 heads of 64), so that no file of that size has to be
transferred. Its weights are dense and its activations are those of a trained model, which is enough
to measure speed and agreement.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from gpu.parts import join
from safetensors.torch import load_file, save_file

# Layers whose outputs (first) or whose inputs (second) are divided among the attention heads.
_BY_HEAD_OUT = ("attention.self.query", "attention.self.key", "attention.self.value")
_BY_HEAD_IN = ("attention.output.dense",)


def repeated(tensor: torch.Tensor, dim: int, heads: int = 1) -> torch.Tensor:
    """Repeat each of the `heads` blocks along a dimension: [h0, h0, h1, h1, ...]."""
    blocks = tensor.chunk(heads, dim)
    return torch.cat([block for block in blocks for _ in range(2)], dim)


def widened(name: str, tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a tensor of twice the width that computes the same from a repeated input."""
    heads_in = heads if any(part in name for part in _BY_HEAD_IN) else 1
    heads_out = heads if any(part in name for part in _BY_HEAD_OUT) else 1
    if "embeddings." in name and tensor.ndim == 2:
        return repeated(tensor, 1)
    wide = repeated(tensor, 0, heads_out)
    if tensor.ndim == 2:
        wide = repeated(wide, 1, heads_in) / 2
    # The scores of heads twice as wide are twice as large, but divided by sqrt(2) times as much.
    return wide / 2**0.5 if "attention.self.query" in name else wide


def make_base(source: Path, target: Path) -> None:
    """Write a model of base size, made from the BERT in `source`."""
    making = target.with_name(f"{target.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(source, making)
    heads = json.loads((source / "config.json").read_text())["num_attention_heads"]
    weights = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("position_ids"):
            continue
        first, _, rest = name.partition("layer.")
        number, _, rest = rest.partition(".")
        for copy in range(2 if number else 1):
            new = f"{first}layer.{2 * int(number) + copy}.{rest}" if number else name
            weights[new] = widened(name, tensor, heads).contiguous()
    save_file(weights, making / "model.safetensors", metadata={"format": "pt"})
    _change(making / "config.json", "hidden_size", "intermediate_size", "num_hidden_layers")
    if (making / "1_Pooling").is_dir():
        _change(making / "1_Pooling" / "config.json", "word_embedding_dimension")
    making.rename(target)


def round_weights(folder: Path) -> None:
    """Round the weights of a model to float16, still in float32, so that they pack into half."""
    path = folder / "model.safetensors"
    weights = {
        name: tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(path).items()
    }
    rounded = path.with_suffix(".rounded")  # the tensors may be views of the file
    save_file(weights, rounded, metadata={"format": "pt"})
    rounded.replace(path)


def _change(path: Path, *names: str) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {name: 2 * values[name] for name in names}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", type=Path)
    parser.add_argument("models", type=Path)
    arguments = parser.parse_args()
    files, models = arguments.models.parent / "files", arguments.models
    for name in join(arguments.parts, files):
        print(f"not whole yet: {name}")
    models.mkdir(parents=True, exist_ok=True)
    for path in (files / "models").glob("*.tar.xz"):
        folder = models / path.name.removesuffix(".tar.xz")
        if not folder.is_dir():
            with tarfile.open(path) as archive:
                archive.extractall(models, filter="data")
        print(f"{folder}: unpacked")
    if not (models / "minilm").is_dir():
        sys.exit("models/minilm.tar.xz has not arrived whole")
    if not (models / "base").is_dir():
        make_base(models / "minilm", models / "base")
    print(f"{models}/base: made of {models}/minilm")


if __name__ == "__main__":
    main()
