"""The command `mirror-rt export`: of one model, or of several as a pack."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mirror_export.config import ExportConfig
from mirror_rt.cli.info import describe_parity
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError, ModelError
from mirror_rt.io.rows import read_texts
from mirror_rt.io.tables import text_table
from mirror_rt.progress import ProgressBar, progress_bar

if TYPE_CHECKING:
    from mirror_export.pack.export_pack import ModelResult

_HEADER = ["model", "language", "variants", "difference", "cosine", "MB", "seconds", "result"]


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The options that say how several models are exported together."""

    all: Annotated[
        Path | None, Help("every tuned or model folder directly in FOLDER", "FOLDER")
    ] = None
    jobs: Annotated[
        int | Literal["auto"], Help("models at a time; auto: as many as fit into memory")
    ] = 1
    resume: Annotated[
        bool,
        Help(
            "keep the bundles of an earlier run that are whole and of the same models and options"
        ),
    ] = False
    fallback: Annotated[
        str | None,
        Help("bundle for languages that the pack lacks (default: such a language is refused; with "
             "--resume, that of the pack)", "NAME"),
    ] = None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Export(Invocation):
    """Write a bundle: ONNX graph with pooling and normalisation inside, tokenizer, manifest.

    The folder of a sequence classification becomes a cross-encoder, for mirror-rt rerank, and that
    of a late-interaction model (ColBERT) stays one. Each is compared with PyTorch on real strings,
    and refused if they differ. Of several models, write a pack: a folder of bundles with an index,
    pack.json.

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


def run_pack(
    pack: PackOptions, models: list[str], config: ExportConfig, *, as_json: bool, quiet: bool
) -> None:
    """Export the models of the command line as a pack; ModelError where some of them failed."""
    from mirror_export.pack.export_pack import export_pack

    models = _models(pack, models, config.out)
    bar = progress_bar(len(models), not quiet, unit="model", desc="export")
    with closing(bar):
        report = export_pack(
            models,
            config,
            jobs=pack.jobs,
            resume=pack.resume,
            fallback=pack.fallback,
            on_result=partial(_tell, bar),
        )
    if as_json:
        values = {
            "models": [_plain(result) for result in report.models],
            "default": report.index.default if report.index else None,
            "saved_bytes": report.saved_bytes,
        }
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        print(text_table(_HEADER, [_row(result) for result in report.models]))
        if report.index is not None:
            count = len(report.index.bundles)
            print(
                f"{config.out}: {count} bundle{'s' * (count != 1)}, default "
                f"{report.index.default}; {report.saved_bytes / 1e6:.1f} MB saved by storing "
                "identical files once"
            )
    if report.failed:
        names = ", ".join(result.name for result in report.failed)
        raise ModelError(f"{len(report.failed)} of {len(report.models)} models failed: {names}")


def _models(pack: PackOptions, models: list[str], out: Path) -> list[str]:
    if pack.all is None:
        return models
    if models:
        raise ConfigError(f"pass models or --all, not both (got {models[0]} too)")
    from mirror_export.pack.sources import find_models
    from mirror_train.languages.language_job import REPORT_FILE

    found, skipped = find_models(pack.all)
    own = {out.name, f"{out.name}.partial", REPORT_FILE}
    if others := [name for name in skipped if name not in own]:
        print(f"{pack.all}: not a model, skipped: {', '.join(others)}", file=sys.stderr)
    return found


def _tell(bar: ProgressBar, result: ModelResult) -> None:
    """Print the log of a finished model's export and a line about its result, and count it."""
    for line in result.log:
        print(f"{result.name}: {line}", file=sys.stderr)
    if result.manifest is None:
        text = f"failed after {result.seconds:.1f} s: {result.error}"
    elif result.status == "kept":
        text = "kept, made earlier from the same files"
    else:
        names = ", ".join(result.manifest.variants)
        text = f"{result.seconds:.1f} s, {names}, {result.bytes / 1e6:.1f} MB"
    print(f"{result.name}: {text}", file=sys.stderr, flush=True)
    bar.update(1)


def _row(result: ModelResult) -> list[str]:
    if (manifest := result.manifest) is None:
        return [result.name, *["-"] * 5, f"{result.seconds:.1f}", f"failed: {result.error}"]
    parity = manifest.variant().parity or {}
    reports = (variant.parity or {} for variant in manifest.variants.values())
    cosines = [found for one in reports if (found := one.get("min_cosine")) is not None]
    difference, cosine = parity.get("max_difference"), min(cosines, default=None)
    return [
        result.name,
        manifest.language or "-",
        ",".join(manifest.variants),
        "-" if difference is None else f"{difference:.1e}",
        "-" if cosine is None else f"{cosine:.6f}",
        f"{result.bytes / 1e6:.1f}",
        f"{result.seconds:.1f}",
        result.status,
    ]


def _plain(result: ModelResult) -> dict[str, Any]:
    manifest = result.manifest.to_dict() if result.manifest else {}
    own = ("name", "model", "status", "error", "bytes", "seconds", "peak_bytes", "log")
    declared = {"language": manifest.get("language"), "variants": manifest.get("variants", {})}
    return {name: getattr(result, name) for name in own} | declared
