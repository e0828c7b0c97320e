"""Run `mirror-rt info`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mirror_rt.bundle.description import STORED, ModelDescription
from mirror_rt.bundle.manifest import Layout, Manifest, Variant
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.bundle.resolve import resolve_bundle
from mirror_rt.cli.common import BundleOrPack, HubOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.heads.task_heads import Heads
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.tables import text_fields, text_table


@dataclass(frozen=True, kw_only=True)
class Info(Invocation):
    """Show what a bundle (or a tuned folder, a pack, or ONNX files) is and how it was made.

    Before, every file is compared with the hash in its manifest. Keys of the folder's files that
    nobody knows are named.

    Examples:
        mirror-rt info bundle
        mirror-rt info pack
        mirror-rt info bundle --json
    """

    model: BundleOrPack
    json: Annotated[bool, Help("the manifest and the verdict as JSON")] = False
    hub: HubOptions

    def run(self) -> None:
        hub = self.hub.make()
        folder = resolve_bundle(self.model, revision=hub.revision, offline=hub.offline)
        if is_pack(folder):
            _show_pack(folder, PackIndex.read(folder), as_json=self.json)
            return
        # A tuned folder may have code of its own, which is not run here.
        allowed = ("auto_map",) if (folder / Layout.manifest).exists() else ()
        described = LoadOptions().describe(folder, formats=STORED, allowed=allowed)
        manifest = described.bundle
        of_others = manifest.format not in STORED
        if not of_others:
            manifest.verify(folder)
        if self.json:
            verdict = {"verified": not of_others}
            print(json.dumps(manifest.to_dict() | verdict, indent=2, ensure_ascii=False))
        else:
            print(text_fields(_rows(described)))


def _show_pack(folder: Path, index: PackIndex, *, as_json: bool) -> None:
    manifests = {name: entry.verify(folder) for name, entry in index.bundles.items()}
    if as_json:
        print(json.dumps(index.to_dict() | {"verified": True}, indent=2, ensure_ascii=False))
        return
    rows = [_pack_row(index, name, manifest) for name, manifest in manifests.items()]
    header = ["bundle", "language", "level", "space", "base model", "dimension", "variants", "MB"]
    print(text_table(header, rows))
    fallback = f", fallback {index.fallback}" if index.fallback else ""
    print(f"{folder}: default {index.default}{fallback}; every SHA-256 verified")


def _pack_row(index: PackIndex, name: str, manifest: Manifest) -> list[str]:
    return [
        name,
        manifest.language or "-",
        manifest.level or "-",
        index.bundles[name].vector_space[:8],
        _join(manifest.base_model, "name", "revision"),
        str(manifest.dimension),
        ",".join(index.bundles[name].variants),
        f"{sum(record.bytes for record in manifest.files.values()) / 1e6:.1f}",
    ]


def _rows(described: ModelDescription) -> list[tuple[str, str]]:
    folder, manifest = described.folder, described.bundle
    size = sum(record.bytes for record in manifest.files.values()) / 1e6
    rows = [
        ("folder", f"{folder} ({manifest.format}, format version {manifest.format_version})"),
        ("base model", _join(manifest.base_model, "name", "revision")),
        ("language", manifest.language or "not declared"),
        ("vector space", _space(manifest)),
        ("level", manifest.level or "not tuned here"),
        _output(manifest),
        ("max length", f"{manifest.max_length} tokens"),
        ("prompts", _prompts(manifest)),
    ]
    if data := manifest.data:
        rows.append(("tuned on", f"{data.get('strings')} strings, {data.get('source')}"))
    if recipe := manifest.recipe:
        shown = ("temperature", "span_length", "dropout", "epochs", "steps", "batch_size",
                 "learning_rate")  # fmt: skip
        parts = [str(recipe["system"])] if "system" in recipe else []  # else Mirror-BERT
        parts += [f"{name} {recipe[name]}" for name in shown if name in recipe]
        rows.append(("recipe", ", ".join(parts)))
    if Heads.present(folder):
        rows.append(("task heads", ", ".join(Heads.read(folder).by_name)))
    rows += [(name, describe_parity(variant)) for name, variant in manifest.variants.items()]
    if unknown := described.unknown:
        rows.append(("unknown keys", f"{', '.join(unknown)}: taken to have no effect on vectors"))
    if not manifest.files:
        return [*rows, ("files", "of others, which have no hashes to compare with")]
    return [
        *rows,
        ("written", f"{manifest.created} by {manifest.generator}"),
        ("files", f"{len(manifest.files)} files, {size:.1f} MB, every SHA-256 verified"),
    ]


def _output(manifest: Manifest) -> tuple[str, str]:
    """Return a row that describes the output of the model."""
    if manifest.head is not None:
        return manifest.head.row(manifest.dimension)
    length = "unit length" if manifest.normalize else "as pooled (normalize: false)"
    parts = f", or its first {' or '.join(map(str, manifest.matryoshka))}"
    dimensions = f"{manifest.dimension} dimensions{parts if manifest.matryoshka else ''}"
    return "embedding", f"{dimensions}, pooling {manifest.pooling}, {length}"


def _space(manifest: Manifest) -> str:
    aligned = (manifest.alignment or {}).get("to")
    return (manifest.space or "its own") + (f", aligned to {aligned}" if aligned else "")


def _prompts(manifest: Manifest) -> str:
    if not manifest.prompts:
        return "none"
    default = manifest.default_prompt_name
    shown = [f"{name} {json.dumps(p, ensure_ascii=False)}" for name, p in manifest.prompts.items()]
    return f"{', '.join(shown)}; default: {default or 'none'}"


def describe_parity(variant: Variant) -> str:
    """Describe in one line how a variant compares with PyTorch."""
    if (parity := variant.parity) is None:
        why = f": {variant.unchecked}" if variant.unchecked else ""  # weights as they are have none
        return f"{variant.file}, not compared with PyTorch{why}"
    kept = variant.graph.get("float32_layers")
    if isinstance(parity.get("correlation"), float):
        alike, noun = f"correlation {_number(parity, 'correlation', '.6f')}", "pairs"
    else:
        mean, worst = (_number(parity, f"{name}_cosine", ".5f") for name in ("mean", "min"))
        alike, noun = f"mean cosine {mean}, worst {worst}", "texts"
    parts = [
        variant.file,
        f"{_number(parity, 'bytes', '.1f', scale=1e-6)} MB",
        f"differs from PyTorch by {_number(parity, 'max_difference', '.1e')} at most, {alike}, "
        f"over {parity.get('texts')} {noun} of {parity.get('min_tokens')} to "
        f"{parity.get('max_tokens')} tokens",
    ]
    if "spearman" in parity:
        rho, own = (_number(parity, name, ".4f") for name in ("spearman", "spearman_pytorch"))
        parts.append(f"Spearman {rho} (PyTorch {own})")
    if isinstance(kept, list) and kept:
        parts.append(f"{len(kept)} layers in float32")
    if parity.get("passed") is False:
        parts.append("TOO FAR FROM PYTORCH, written by force")
    return ", ".join(parts)


def _number(values: dict[str, Any], name: str, form: str, *, scale: float = 1) -> str:
    value = values.get(name)
    return format(value * scale, form) if isinstance(value, int | float) else "undefined"


def _join(values: dict[str, Any], *names: str) -> str:
    return " ".join(str(values[name]) for name in names if values.get(name)) or "not declared"
