"""Describe sparse encoders, as sentence-transformers saves them: SPLADE, with tables for queries.

The head of a masked language model gives a logit for each word of the vector of each token, and a
SpladePooling makes a weight of these. With a Router, queries may have another way: a
SparseStaticEmbedding gives each of their tokens a weight of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, get_args

from mirror_rt.bundle.checkpoint_files import (
    checkpoint_family,
    native_variants,
    open_weights,
    refuse_pickled,
    sizes_of,
    with_history,
)
from mirror_rt.bundle.classifier import NAMES
from mirror_rt.bundle.declarations import (
    DOCUMENT,
    QUERY,
    WEIGHTS,
    read_routes,
    read_text_options,
)
from mirror_rt.bundle.description import ModelDescription, describe_folder
from mirror_rt.bundle.json_document import naming
from mirror_rt.bundle.manifest import MOST_TOKENS, Manifest
from mirror_rt.bundle.model_kinds import WORDS
from mirror_rt.bundle.plain_manifest import derived_manifest, width
from mirror_rt.bundle.word_layers import WordActivation, WordLayers
from mirror_rt.bundle.word_tensors import Floats, check_finite, head_names, open_file, word_shapes
from mirror_rt.errors import BundleError
from mirror_rt.io.tensors import MappedTensors
from mirror_rt.schema import build

_TABLE = "SparseStaticEmbedding"
_ENCODERS = (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"])


def describe_sparse(folder: Path) -> ModelDescription:
    """Describe the folder of a sparse encoder that is no bundle, with the manifest of its weights.

    Raises:
        BundleError: the folder is of another kind, is damaged, or its head is not known.
    """
    described = describe_folder(folder, route=DOCUMENT)
    check_sparse(described)
    if described.weights is None:
        refuse_pickled(described)
        Manifest.read(folder, WORDS.format)  # its error names the missing files
    described = described.with_tokenizer(described.transformer)
    words, variants = describe_words(described, open_weights(described)), native_variants(described)
    manifest = derived_manifest(
        described,
        dimension=width(described),
        pooling="max",  # of no meaning here
        normalize=False,
        words=dataclasses.asdict(words),
        variants={name: dataclasses.asdict(one) for name, one in variants.items()},
        format="safetensors files",
    )
    return dataclasses.replace(described, manifest=with_history(described, manifest))


def check_sparse(described: ModelDescription) -> None:
    """Raise BundleError if a folder is not that of a sparse encoder that can be run here.

    Without modules it is one by its architecture, as sentence-transformers takes it.
    """
    described.check_kind("SparseEncoder")
    names, folder = described.names, described.folder
    architectures = described.config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if not described.modules and first.endswith("ForMaskedLM"):
        return
    if names not in _ENCODERS:
        raise BundleError(
            f"{folder} is no sparse encoder that is run here: expected a Transformer and a "
            f"SpladePooling, got {', '.join(names) or 'no modules, and no masked language model'}"
        )
    options = read_text_options(described.transformer)
    usual = {"method_output_name": "logits"} if names[0] == "MLMTransformer" else {}
    way = (options.values.get("modality_config") or {}).get("text", usual)
    if not isinstance(way, dict) or way.get("method_output_name") != "logits":
        raise BundleError(f"{options.path}: its texts give no logits of words: {way!r:.200}")


def describe_words(described: ModelDescription, stored: MappedTensors) -> WordLayers:
    """Return the layers of a head by its weights and declarations; BundleError for unusable ones.

    `stored` has the tensors by the names of the family's checkpoints.
    """
    with sizes_of(described):
        return _describe_words(described, stored)


def _describe_words(described: ModelDescription, stored: MappedTensors) -> WordLayers:
    names, row = head_names(described), checkpoint_family(described).tensors
    assert row is not None
    given = names.activation
    if given in ("hidden_act", "activation", "classifier_activation"):
        given = described.config.get(names.activation, names.usual)
    activation = NAMES.get(given, given)
    if activation not in get_args(WordActivation):
        raise BundleError(
            f"{described.transformer / 'config.json'}: {names.activation} is {given!r}, which has "
            f"no implementation here; there are {', '.join(get_args(WordActivation))}"
        )
    size, inner = word_shapes(described, stored)
    pooling: dict[str, Any] = {}
    for module in described.modules[1:]:
        values = module.declared.values
        pooling |= {"pooling": values.get("pooling_strategy", "max"),
                    "weighing": values.get("activation_function", "relu")}  # fmt: skip
    queries = describe_queries(described)
    made = {"size": size, "inner": inner, "activation": activation,
            "norm": float(described.config.get(*row.epsilon)), "active": described.active or None,
            "query_length": None if queries is None else queries.max_length}  # fmt: skip
    with naming(described.folder):
        layers: WordLayers = build(WordLayers, made | pooling)
    return layers


class Queries(NamedTuple):
    """The way of queries that are looked up.

    Attributes:
        described: the declarations beside their tokenizer.
        weights: the file of the weights of their words.
        max_length: most tokens of a query.
    """

    described: ModelDescription
    weights: Path
    max_length: int


def describe_queries(described: ModelDescription) -> Queries | None:
    """Describe the table for queries of a sparse encoder; None if they go the way of documents.

    Raises:
        BundleError: a Router has another form than one for queries and documents, with a table.
    """
    folder, manifest = described.folder, described.manifest
    if manifest is not None and not manifest.is_checkpoint:
        length = None if manifest.words is None else manifest.words.query_length
        return None if length is None else Queries(described, folder / WordLayers.table, length)
    if (routes := read_routes(folder)) is None:
        return None
    default = routes.parameters.get("default_route") or DOCUMENT
    others: Collection[str] = routes.structure.keys() - {QUERY, DOCUMENT}
    if others or DOCUMENT not in routes.structure or default != DOCUMENT:
        raise BundleError(
            f"{folder} routes texts to {', '.join(routes.structure)}, by default to {default}: "
            f"expected {QUERY} and {DOCUMENT}, the default"
        )
    if routes.parameters.get("route_mappings"):
        raise BundleError(f"{folder} has route_mappings in its Router, which are not followed")
    if routes.structure.get(QUERY) in (None, routes.structure[DOCUMENT]):
        return None
    found = describe_folder(folder, route=QUERY)
    if found.names != [_TABLE]:
        raise BundleError(
            f"{folder} sends queries through {', '.join(found.names)}: expected a {_TABLE}, or the "
            "modules of documents"
        )
    file = found.modules[0].folder / WEIGHTS
    return Queries(found, file, found.declared_length or MOST_TOKENS)


def read_queries(queries: Queries, size: int) -> Floats:
    """Read the weights of the words of queries, float32 [size]; BundleError for unusable ones."""
    stored = open_file(queries.weights)
    if stored.shape("weight") != (size,):
        raise BundleError(
            f"{queries.weights}: weight is {list(stored.shape('weight'))}, expected [{size}], as "
            "documents have"
        )
    weights = stored.floats("weight").copy()  # mapped bytes change with the file
    check_finite(queries.weights, {"weight": weights})
    return weights
