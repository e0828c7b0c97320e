"""Describe folders of plain ONNX files, as other tools publish encoders, like a bundle.

sentence-transformers and transformers.js put graphs into `onnx/`, fastembed puts one beside the
tokenizer. Their graphs give a vector for each token; how these become one vector is declared in
modules.json, which only some publishers include. A folder whose files leave that open is refused.
"""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import get_args

from mirror_rt.bundle.checkpoint_files import (
    PRECISIONS,
    TUNED,
    describe_checkpoint,
    refuse_pickled,
    shards_of,
)
from mirror_rt.bundle.classifier import describe_cross_encoder, describe_scoring_graphs
from mirror_rt.bundle.declarations import DOCUMENT, INDEX, METADATA, WEIGHTS
from mirror_rt.bundle.description import ModelDescription, describe_folder
from mirror_rt.bundle.families import FAMILIES, GENERIC
from mirror_rt.bundle.graph_header import read_header
from mirror_rt.bundle.hub import Repository
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.late_interaction import describe_late_interaction
from mirror_rt.bundle.manifest import Layout, Manifest, Precision, Variant, declared_format
from mirror_rt.bundle.model_kinds import DENSE, KINDS, LATE, PAIRS, WORDS, Format, ModelKind
from mirror_rt.bundle.plain_manifest import PoolingChoice, describe_plain
from mirror_rt.bundle.sparse_files import describe_sparse
from mirror_rt.bundle.static_files import FILES, describe_static
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.tokens.settings import TokenizerSettings

# Where publishers put the default graph, and the others, in the order of preference.
_DEFAULTS = ("onnx/model.onnx", "model.onnx", "onnx/model_optimized.onnx", "model_optimized.onnx")
_OTHERS = ("onnx/model_{}.onnx", "model_{}.onnx")
# Of the modules, the tokenizer and the settings; and the weights of modules.
_DESCRIPTIONS = ("*.json", METADATA, "*/config.json", "*_Dense/model.safetensors",
                 "*_SparseStaticEmbedding/model.safetensors")  # fmt: skip
# Names of graphs that are in float32 although their weights or operators were changed.
_SINGLE = ("fp32", "optimized", "O1", "O2", "O3")


def describe_bundle(
    folder: Path,
    *,
    pooling: PoolingChoice = "auto",
    formats: tuple[Format, ...] = ("mirror_rt bundle",),
    allowed: Collection[str] = (),
    weights: bool = False,
) -> ModelDescription:
    """Describe a bundle, or files that others published, with a manifest of any of them.

    Of several, these are taken in this order: a bundle, a static encoder, ONNX files, and weights
    in safetensors, which are all that a tuned folder has, and come first of a cross-encoder that
    the native engine computes.

    Args:
        folder: the folder.
        pooling: that of files that declare none; `auto` stands for the declared one.
        formats: the formats that mirror.json may have.
        allowed: refused keys that the caller may follow.
        weights: take weights in safetensors before ONNX files.

    Raises:
        BundleError: the folder is none of these, is damaged, or lacks a declaration that is needed.
    """
    if pooling not in get_args(PoolingChoice):
        raise ConfigError(
            field="pooling", expected=f"one of {get_args(PoolingChoice)}", value=pooling
        )
    described = describe_folder(folder, formats=(*formats, TUNED), allowed=allowed)
    tuned = described.manifest is not None and described.manifest.format == TUNED
    if described.manifest is not None and (not tuned or TUNED in formats):
        return described
    kinds = [KINDS[one] for one in formats if one in KINDS]
    kind = described.own_kind if described.own_kind in kinds else kinds[0]
    if kind is WORDS:
        return describe_sparse(folder)
    if described.own_kind in (WORDS, LATE) and described.own_kind is not kind:
        raise BundleError(f"{folder} {described.own_kind.advice}")
    if described.is_static and DENSE in kinds:
        manifest = describe_static(described)
        return dataclasses.replace(described, manifest=manifest, tokenizer=TokenizerSettings())
    variants = {} if tuned or kind is LATE else onnx_variants(folder)
    family = FAMILIES.get(str(described.config.get("model_type")), GENERIC)
    weights = weights or not variants or (kind is PAIRS and family.tensors is not None)
    weights = weights and described.weights is not None
    if not variants and not weights:
        refuse_pickled(described)
        Manifest.read(folder, formats)  # its error says what the folder lacks
    described = described.with_tokenizer(described.transformer if weights else folder)
    try:
        if kind is LATE:
            manifest = describe_late_interaction(described)
        elif weights and kind is PAIRS:
            manifest = describe_cross_encoder(described)
        elif weights:
            manifest = describe_checkpoint(described, pooling)
        elif kind is PAIRS:
            manifest = describe_scoring_graphs(described, variants)
        else:
            manifest = describe_plain(described, variants, pooling)
        return dataclasses.replace(described, manifest=manifest)
    except BundleError as error:
        raise BundleError(f"{error}. Or {to_export(folder)}") from error


def kind_of(folder: Path) -> ModelKind:
    """Return the kind of the model in a folder: a bundle, or files that others published."""
    if (declared := declared_format(folder)) in KINDS:
        return KINDS[declared]
    described = describe_folder(folder)
    if described.own_kind is not WORDS and described.weights is None:
        graphs = described.is_classifier and onnx_variants(folder)
        return PAIRS if graphs else DENSE
    return described.own_kind


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


def download_files(
    repository: Repository, variants: Sequence[str | None] | None, *, weights: bool
) -> Path:
    """Download files that others published: ONNX graphs, a static encoder, or a checkpoint.

    Of ONNX files it downloads only the graphs of `variants`; with `weights`, weights in safetensors
    come before them.
    """

    def fetch(*files: str) -> Path:
        return repository.download([*_DESCRIPTIONS, *files])

    folder = fetch()
    described = describe_folder(folder)
    if described.is_static:
        return fetch(*FILES)
    weights = weights or described.own_kind is WORDS  # which no graph of others is
    if weights and (found := _fetch_checkpoint(fetch)) is not None:
        return found
    for variant in [None] if variants is None else variants:
        for file in _places(variant):
            folder = fetch(file)
            if (folder / file).is_file():
                # The graph names the files of its weights, which publishers name as they like.
                external = read_header(folder / file).external
                beside = [glob.escape(Path(file).with_name(one).as_posix()) for one in external]
                folder = fetch(file, *beside)
                break
        else:
            made = variant in (None, *PRECISIONS)  # of weights, while they are loaded
            if made and (found := _fetch_checkpoint(fetch)) is not None:
                return found
            wanted = "ONNX graph" if variant is None else f"ONNX graph of the variant {variant!r}"
            raise BundleError(
                f"{repository.name} holds neither a bundle ({Layout.manifest}), nor an {wanted}, "
                f"nor weights in safetensors; {to_export(repository.name)}"
            )
    return folder


def _fetch_checkpoint(fetch: Callable[..., Path]) -> Path | None:
    """Fetch the weights in safetensors and the files beside them; None where there are none."""
    folder = fetch()
    place = describe_folder(folder, route=DOCUMENT).transformer.relative_to(folder)
    files = [(place / name).as_posix() for name in (WEIGHTS, INDEX, "vocab.txt")]
    folder = fetch(*files)
    weights = describe_folder(folder, route=DOCUMENT).weights
    if weights is not None and weights.name == INDEX:
        shards = [(place / name).as_posix() for name in shards_of(weights)]
        folder = fetch(*files, *map(glob.escape, shards))
    return None if weights is None else folder


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
    """Return the precision of a graph by its name; an unknown one is not taken for exact."""
    if name in _SINGLE:
        return "fp32"
    return "fp16" if re.search(r"f(p|loat)?16|O4", name) else "int8"
