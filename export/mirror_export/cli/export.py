"""The command `mirror-rt export`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirror_export.cli.export_pack import PackOptions, run_pack
from mirror_export.config import ExportConfig
from mirror_rt.cli.info import describe_parity
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError
from mirror_rt.io.rows import read_texts


@dataclass(frozen=True, kw_only=True)
class Export(Invocation):
    """Write a bundle: ONNX graph with pooling and normalisation inside, tokenizer, manifest.

    The folder of a sequence classification becomes a cross-encoder, for mirror-rt rerank. Each is
    compared with PyTorch on real strings, and refused if they differ. Of several models, write a
    pack: a folder of bundles with an index, pack.json.

    Examples:
        mirror-rt export tuned --out bundle
        mirror-rt export sentence-transformers/all-MiniLM-L6-v2 --out bundle
        mirror-rt export bert-base-uncased --pooling mean --out bundle
        mirror-rt export tuned/fr tuned/en tuned/zh --out pack --jobs auto
        mirror-rt export --all tuned --out pack --resume
        mirror-rt export tuned --out bundle --precision fp32,int8 --parity-pairs pairs.tsv
    """

    models: Annotated[
        tuple[str, ...],
        Help("tuned folder; also any encoder's folder or hub name; several make a pack", "MODEL",
             word=True, flag="--model"),
    ] = ()  # fmt: skip
    out: Annotated[Path, Help("folder to write", "BUNDLE|PACK")]
    pack: Annotated[PackOptions, Group("pack")]
    config: Annotated[Given[ExportConfig], Group(leave_out=("model", "out", "parity_texts"))]
    parity_texts: Annotated[
        Path | None,
        Help("strings to compare over, one a line (default: a built-in sample, in the model's "
             "language where that is known)"),
    ] = None  # fmt: skip
    json: Annotated[bool, Help("results as JSON on standard output")] = False
    quiet: Annotated[bool, Help("show no progress")] = False

    def kept(self) -> str:
        return "nothing was written"

    def run(self) -> None:
        from mirror_export.export import export_bundle

        pack = self.pack
        if pack.all is not None or len(self.models) > 1:
            run_pack(
                pack, list(self.models), self.settings(""), as_json=self.json, quiet=self.quiet
            )
            return
        if not self.models:
            raise ConfigError("nothing to export: name a model, or pass --all FOLDER")
        if pack.resume or pack.fallback or pack.jobs != 1:
            raise ConfigError(
                "--resume, --fallback and --jobs go with several models, or with --all FOLDER"
            )
        manifest = export_bundle(self.settings(self.models[0]), show_progress_bar=not self.quiet)
        if self.json:
            print(json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False))
            return
        for name, variant in manifest.variants.items():
            print(f"{self.out}: {name}: {describe_parity(variant)}")

    def settings(self, model: str) -> ExportConfig:
        """Return the settings for a model."""
        path = self.parity_texts
        texts = None if path is None else read_texts(path)
        return self.config.make(model=model, parity_texts=texts)
