"""Describe the folders of encoders with their weights in safetensors, as hubs hold them.

transformers and sentence-transformers write them: config.json, the weights and a tokenizer. The
native engine computes those of its families as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from mirror_rt.bundle.declarations import WEIGHTS
from mirror_rt.bundle.declared_keys import read_object
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.families import FAMILIES, Family
from mirror_rt.bundle.json_document import naming, to_export
from mirror_rt.bundle.manifest import Layout, Manifest, Precision, Variant
from mirror_rt.bundle.model_kinds import PAIRS, WITH_HEADS, Format
from mirror_rt.bundle.plain_manifest import PoolingChoice, of_declared
from mirror_rt.errors import BundleError
from mirror_rt.io.tensors import MappedTensors
from mirror_rt.schema import InnerPath, build
from mirror_rt.tokens.settings import TYPED

PICKLED = "pytorch_model*.bin"
TUNED: Format = "mirror_rt encoder"  # the folders that training writes
# Before the names of tensors of sentence-transformers, of models with a head, and of training.
_WRAPPERS = ("0.auto_model.", "auto_model.", "model.", "module.")
_OLD_NORMS = {".gamma": ".weight", ".beta": ".bias"}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")


def describe_checkpoint(described: ModelDescription, pooling: PoolingChoice = "auto") -> Manifest:
    """Return the manifest of an encoder, by the declarations beside its weights."""
    if pooling == "auto" and described.own_kind is PAIRS:
        raise BundleError(f"{described.folder} {PAIRS.advice}")
    checkpoint_family(described)
    made = of_declared(described, native_variants(described), pooling, "safetensors files")
    return with_history(described, made)


def with_history(described: ModelDescription, made: Manifest) -> Manifest:
    """Return a manifest that was made of weights, with the history of a tuned folder."""
    if (manifest := described.manifest) is None:
        return made
    if manifest.pad_to is not None or (made.head is None and manifest.pooling != made.pooling):
        raise BundleError(
            f"{described.folder / Layout.manifest} declares the pooling {manifest.pooling}, which "
            "is computed by graphs alone"
        )
    return replace(
        manifest,
        dimension=made.dimension,
        max_length=min(manifest.max_length, made.max_length),
        pooling=made.pooling,
        normalize=made.normalize,
        variants=made.variants,
        format=made.format,
        **{kind.field: getattr(made, kind.field) for kind in WITH_HEADS},
    )


def checkpoint_family(described: ModelDescription) -> Family:
    """Return the row of a model's family; BundleError if the engine does not compute it."""
    kind = str(described.config.get("model_type"))
    family = FAMILIES.get(kind)
    if described.config.get("auto_map"):
        raise BundleError(
            f"{described.transformer / 'config.json'} names code of its own (auto_map), which is "
            "not run here"
        )
    if family is None or family.tensors is None:
        known = ", ".join(name for name, one in FAMILIES.items() if one.tensors)
        raise BundleError(
            f"{described.folder} is of the family {kind}, and the native engine computes {known}"
        )
    return family


def open_weights(described: ModelDescription) -> MappedTensors:
    """Map the weights of a folder, named as the encoder of its family names them."""
    path, names = described.weights, checkpoint_family(described).tensors
    assert path is not None
    assert names is not None
    own = partial(_own_name, prefixes=(*_WRAPPERS, f"{names.prefix}."), renamed=names.renamed)
    if path.name == WEIGHTS:
        return MappedTensors(path, [path], own)
    return MappedTensors(path, [path.parent / name for name in shards_of(path)], own)


@contextlib.contextmanager
def sizes_of(described: ModelDescription) -> Iterator[None]:
    """Turn the errors of values that config.json must not have into a BundleError that names it."""
    try:
        yield
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        path = described.transformer / "config.json"
        raise BundleError(f"{path} does not describe the weights beside it: {error}") from error


def shards_of(index: Path) -> list[str]:
    """Return the names of the files of weights that an index names; BundleError if damaged."""
    with naming(index):
        places = build(dict[str, InnerPath], read_object(index).get("weight_map"), "weight_map")
    return sorted({*places.values()})


def _own_name(
    stored: str, prefixes: tuple[str, ...], renamed: tuple[tuple[str, str], ...]
) -> list[str]:
    """Return the name of a tensor without the parts that other libraries and models put around it.

    Several are the names of its equal parts.
    """
    name = stored
    while prefix := next(filter(name.startswith, prefixes), ""):
        name = name.removeprefix(prefix)
    for old, new in _OLD_NORMS.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    for published, known in renamed:
        if published in name:
            before, after = name.split(published, 1)
            name = "+".join(f"{before}{one}{after}" for one in known.split("+"))
    return name.split("+")


def refuse_pickled(described: ModelDescription) -> None:
    """Raise BundleError if a folder has its weights in pickles alone."""
    for path in described.transformer.glob(PICKLED):
        raise BundleError(
            f"{path} holds the weights, which are read from {WEIGHTS} alone, as pickles may hold "
            f"code: save them with transformers, or {to_export(described.folder)}"
        )


def native_variants(described: ModelDescription) -> dict[str, Variant]:
    """Return a variant for each precision that the engine makes of the weights."""
    assert described.weights is not None
    file = described.weights.relative_to(described.folder).as_posix()
    return {name: Variant(file, name, "native") for name in PRECISIONS}


def takes_types(described: ModelDescription) -> bool:
    """Return whether the model gets the types that a tokenizer gives the two texts of a pair."""
    names = described.tokenizer.values.get("model_input_names")
    return described.tokenizer.name in TYPED if names is None else "token_type_ids" in names
