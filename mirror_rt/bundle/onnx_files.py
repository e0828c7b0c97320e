"""Describe folders of plain ONNX files, as other tools publish encoders, like a bundle.

sentence-transformers and transformers.js put graphs into `onnx/`, fastembed puts one beside the
tokenizer. Their graphs give a vector for each token; how these become one vector is declared in
modules.json, which only some publishers include. What cannot be known from the files is refused.
"""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import get_args

from mirror_rt.bundle.description import ModelDescription, describe_folder
from mirror_rt.bundle.graph_header import read_header
from mirror_rt.bundle.hub import download
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.manifest import Format, Layout, Manifest, Precision, Variant
from mirror_rt.bundle.plain_manifest import PoolingChoice, describe_plain
from mirror_rt.bundle.static_files import FILES, describe_static
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.tokens.settings import TokenizerSettings

# Where publishers put the default graph, and the others, in the order of preference.
_DEFAULTS = ("onnx/model.onnx", "model.onnx", "onnx/model_optimized.onnx", "model_optimized.onnx")
_OTHERS = ("onnx/model_{}.onnx", "model_{}.onnx")
_DESCRIPTIONS = ("*.json", "*/config.json")  # of the modules, the tokenizer and the settings
# Names of graphs that are in float32 although their weights or operators were changed.
_SINGLE = ("fp32", "optimized", "O1", "O2", "O3")


def read_manifest(folder: Path, *, pooling: PoolingChoice = "auto") -> Manifest:
    """Read the manifest of an encoder, as `describe_bundle` does."""
    return describe_bundle(folder, pooling=pooling).bundle


def describe_bundle(
    folder: Path,
    *,
    pooling: PoolingChoice = "auto",
    formats: tuple[Format, ...] = ("mirror_rt bundle",),
    allowed: Collection[str] = (),
) -> ModelDescription:
    """Describe a bundle, ONNX files or a static encoder, with a manifest of any of them.

    Args:
        folder: the folder.
        pooling: that of ONNX files that declare none; `auto` stands for the declared one.
        formats: the formats that mirror.json may have.
        allowed: refused keys that the caller may follow.

    Raises:
        BundleError: the folder is none of these, is damaged, or does not say what must be known.
    """
    if pooling not in get_args(PoolingChoice):
        raise ConfigError(
            field="pooling", expected=f"one of {get_args(PoolingChoice)}", value=pooling
        )
    described = describe_folder(folder, formats=formats, allowed=allowed)
    if described.manifest is not None:
        return described
    if described.is_static:
        manifest = describe_static(described)
        return dataclasses.replace(described, manifest=manifest, tokenizer=TokenizerSettings())
    if not (variants := onnx_variants(folder)):
        Manifest.read(folder)  # its error says what the folder lacks
    try:
        return describe_plain(described, variants, pooling)
    except BundleError as error:
        raise BundleError(f"{error}. Or {to_export(folder)}") from error


def onnx_variants(folder: Path) -> dict[str, Variant]:
    """Return name -> graph of the ONNX files in a folder, the default first.

    `model.onnx` is `fp32`, `model_X.onnx` is `X`, and `model_quantized.onnx` is also `int8`.
    """
    default = next((name for name in _DEFAULTS if (folder / name).is_file()), None)
    paths = [*sorted(folder.glob("onnx/model_*.onnx")), *sorted(folder.glob("model_*.onnx"))]
    found = {} if default is None else {_name(Path(default)): default}
    for path in filter(Path.is_file, paths):  # not pipes, which would be waited for
        found.setdefault(_name(path), path.relative_to(folder).as_posix())
    if "quantized" in found:
        found.setdefault("int8", found["quantized"])
    return {name: Variant(file, _precision(name), "cpu") for name, file in found.items()}


def download_onnx(
    name: str, *, revision: str, offline: bool, variants: Sequence[str | None] | None
) -> Path:
    """Download a static encoder, or plain ONNX files with only the graphs of `variants`."""
    folder = download(name, revision=revision, offline=offline, error=BundleError,
                      allow=[*_DESCRIPTIONS])  # fmt: skip
    if describe_folder(folder).is_static:
        return download(name, revision=revision, offline=offline, error=BundleError,
                        allow=[*_DESCRIPTIONS, *FILES])  # fmt: skip
    for variant in [None] if variants is None else variants:
        for file in _places(variant):
            folder = download(name, revision=revision, offline=offline, error=BundleError,
                              allow=[*_DESCRIPTIONS, file])  # fmt: skip
            if (folder / file).is_file():
                # The graph names the files of its weights, which publishers name as they like.
                weights = read_header(folder / file).external
                beside = [glob.escape(Path(file).with_name(one).as_posix()) for one in weights]
                folder = download(name, revision=revision, offline=offline, error=BundleError,
                                  allow=[*_DESCRIPTIONS, file, *beside])  # fmt: skip
                break
        else:
            wanted = "ONNX graph" if variant is None else f"ONNX graph of the variant {variant!r}"
            raise BundleError(
                f"{name} holds neither a bundle ({Layout.manifest}) nor an {wanted}; "
                + to_export(name)
            )
    return folder


def _places(variant: str | None) -> list[str]:
    if variant is None:  # as in a folder: the default, else the one that there is
        return [*_DEFAULTS, *(place.format("quantized") for place in _OTHERS)]
    if variant == "fp32":
        return list(_DEFAULTS)
    names = [variant, "quantized"] if variant == "int8" else [variant]
    return [place.format(name) for name in names for place in _OTHERS]


def _name(graph: Path) -> str:
    return "fp32" if graph.stem == "model" else graph.stem.removeprefix("model_")


def _precision(name: str) -> Precision:
    """Return the precision of a graph by its name; what is unknown is not taken for exact."""
    if name in _SINGLE:
        return "fp32"
    return "fp16" if re.search(r"f(p|loat)?16|O4", name) else "int8"
