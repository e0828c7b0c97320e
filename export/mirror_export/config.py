"""The configuration of an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mirror_rt.bundle.manifest import Layout, Pooling, Precision, Target
from mirror_rt.keywords import take_paths


class Kind(NamedTuple):
    """The precision, target and file that the name of a variant stands for."""

    precision: Precision
    target: Target
    file: str


# The file names of the CPU variants are those that sentence-transformers, optimum and
# transformers.js look for.
KINDS = {
    "fp32": Kind("fp32", "cpu", Layout.model),
    "fp16": Kind("fp16", "cpu", "onnx/model_fp16.onnx"),
    "int8": Kind("int8", "cpu", "onnx/model_int8.onnx"),
    "fp32-cuda": Kind("fp32", "cuda", "onnx/model_packed.onnx"),
    "fp16-cuda": Kind("fp16", "cuda", "onnx/model_fp16_packed.onnx"),
    "bf16-cuda": Kind("bf16", "cuda", "onnx/model_bf16.onnx"),
    "bf16-native": Kind("bf16", "native", Layout.model),
    "int8-native": Kind("int8", "native", Layout.model),
}


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """The model to export, and the way to do it.

    Attributes:
        model: tuned folder, or any encoder's folder or hub name.
        out: bundle to write.
        pooling: `auto` takes that of the folder, with its further modules, or the head of a
            sequence classification (a cross-encoder); another is used in place of all that.
        precisions: precisions of the variants to write.
        targets: execution providers to write them for; `cuda` adds graphs that only CUDA runs.
        parity_texts: strings to compare over, of a cross-encoder in pairs; by default a built-in
            sample in the model's language.
        parity_pairs: TSV of text, text, score, or a folder with LANGUAGE.tsv: Spearman's
            correlation is reported with it, too.
        force: write variants that fail a gate, too (the manifest says that they failed).
        max_length: most tokens of a text; `model` for the limit of the model. By default the limit
            that the folder declares, else that of the model.
        truncate_dim: number of the first dimensions to keep, and to normalise; by default the
            number that the folder declares, else all.
        trust_remote_code: run code that comes with the model.
        revision: branch, tag or commit on the hub.
        overwrite: replace an existing bundle.
        offline: never ask the network.
        threads: processors for comparing the bundle with PyTorch; by default all.
    """

    model: str
    out: Path
    pooling: Pooling | Literal["auto"] = "auto"
    precisions: tuple[Precision, ...] = ("fp32",)
    targets: tuple[Target, ...] = ("cpu",)
    parity_texts: list[str] | None = None
    parity_pairs: Path | None = None
    force: bool = False
    max_length: int | Literal["model"] | None = None
    truncate_dim: int | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    overwrite: bool = False
    offline: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        take_paths(self)
