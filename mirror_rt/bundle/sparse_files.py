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

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.checkpoint_files import (
    checkpoint_family,
    native_variants,
    open_weights,
    refuse_pickled,
    sizes_of,
)
from mirror_rt.bundle.classifier import NAMES
from mirror_rt.bundle.declarations import WEIGHTS, read_routes, read_text_options
from mirror_rt.bundle.description import ModelDescription, describe_folder
from mirror_rt.bundle.json_document import naming
from mirror_rt.bundle.manifest import MOST_TOKENS, Format, Layout, Manifest
from mirror_rt.bundle.plain_manifest import derived_manifest, width
from mirror_rt.bundle.word_layers import WordActivation, WordLayers
from mirror_rt.errors import BundleError
from mirror_rt.io.tensors import MappedTensors
from mirror_rt.schema import build

Floats = npt.NDArray[np.float32]
FORMAT: Format = "mirror_rt sparse encoder"
QUERY, DOCUMENT = "query", "document"
_TABLE = "SparseStaticEmbedding"
_ENCODERS = (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"])
# The tensors of a head in a bundle, all of which are there.
TENSORS = tuple(f"{layer}.{part}" for layer in ("dense", "norm", "decoder")
                for part in ("weight", "bias"))  # fmt: skip


class WordNames(NamedTuple):
    """The names that a family's checkpoints give to the head of a masked language model.

    Attributes:
        dense, norm, decoder: its layers; the bias of the last one may be that of what holds it.
        activation: name of the activation in transformers, or the field of config.json with it.
        usual: where config.json does not say it.
        biased: whether all of them have biases, whatever config.json says.
    """

    dense: str
    norm: str
    decoder: str
    activation: str = "gelu"
    usual: str = "gelu"
    biased: bool = True


_PREDICTIONS = "cls.predictions.transform"
_BERT = WordNames(f"{_PREDICTIONS}.dense", f"{_PREDICTIONS}.LayerNorm", "cls.predictions.decoder",
                  "hidden_act")  # fmt: skip
_ROBERTA = WordNames("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
# The heads of the families, by the model_type of config.json.
HEADS = {
    "bert": _BERT,
    "ernie": _BERT,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet"), _ROBERTA),
    "distilbert": WordNames("vocab_transform", "vocab_layer_norm", "vocab_projector", "activation"),
    "electra": WordNames("generator_predictions.dense", "generator_predictions.LayerNorm",
                         "generator_lm_head"),
    "albert": WordNames("predictions.dense", "predictions.LayerNorm", "predictions.decoder",
                        "hidden_act", "gelu_new"),
    "modernbert": WordNames("head.dense", "head.norm", "decoder", "classifier_activation",
                            biased=False),
}  # fmt: skip


def describe_sparse(folder: Path) -> ModelDescription:
    """Describe the folder of a sparse encoder that is no bundle, with the manifest of its weights.

    Raises:
        BundleError: the folder is of another kind, is damaged, or its head is not known.
    """
    described = describe_folder(folder, route=DOCUMENT)
    check_sparse(described)
    if described.weights is None:
        refuse_pickled(described)
        Manifest.read(folder, FORMAT)  # its error says what the folder lacks
    path = described.transformer / Layout.tokenizer
    content = path.read_bytes() if path.is_file() else None
    settings = dataclasses.replace(described.tokenizer, content=content)
    described = dataclasses.replace(described, tokenizer=settings)
    with sizes_of(described):
        words, hidden = describe_words(described, open_weights(described)), width(described)
    variants = native_variants(described)
    manifest = derived_manifest(
        described,
        dimension=hidden,
        pooling="max",  # of no meaning here
        normalize=False,
        words=dataclasses.asdict(words),
        variants={name: dataclasses.asdict(one) for name, one in variants.items()},
        format="safetensors files",
    )
    return dataclasses.replace(described, manifest=manifest)


def check_sparse(described: ModelDescription) -> None:
    """Raise BundleError if a folder is not that of a sparse encoder that can be run here.

    Without modules it is one by its architecture, as sentence-transformers takes it.
    """
    described.check_kind("SparseEncoder")
    names, folder = described.names, described.folder
    architectures = described.config.get("architectures") or [""]
    if not described.modules and str(architectures[0]).endswith("ForMaskedLM"):
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
    names, row = _head(described), checkpoint_family(described).tensors
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
    size, inner = _shapes(described, stored)
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


def _shapes(described: ModelDescription, stored: MappedTensors) -> tuple[int, int]:
    """Check the shapes of a head's tensors; return the numbers of words, and of their inputs."""
    places = locate_words(described, stored)
    size, inner = (*stored.shape(places["decoder.weight"]), 0)[:2]
    _check_shapes(stored, places, size, inner, width(described))
    return size, inner


def _check_shapes(
    stored: MappedTensors, places: dict[str, str], size: int, inner: int, hidden: int
) -> None:
    of_dense, of_words = (inner, hidden), (size, inner)
    expected = dict(zip(TENSORS, (of_dense, (inner,), (inner,), (inner,), of_words, (size,)),
                        strict=True))  # fmt: skip
    for name, place in places.items():
        if (shape := stored.shape(place)) != expected[name]:
            raise BundleError(
                f"{stored.path}: {place} has the shape {list(shape)}, expected "
                f"{list(expected[name])}"
            )


def _head(described: ModelDescription) -> WordNames:
    kind = str(described.config.get("model_type"))
    checkpoint_family(described)
    if kind not in HEADS:
        raise BundleError(
            f"{described.folder} is of the family {kind}, whose head of words is not known; known "
            f"are {', '.join(HEADS)}"
        )
    return HEADS[kind]


def locate_words(described: ModelDescription, stored: MappedTensors) -> dict[str, str]:
    """Map the tensors of a head, by their names in a bundle, to those that a checkpoint has.

    A bias that the family may lack is left out.
    """
    names, row = _head(described), checkpoint_family(described).tensors
    assert row is not None
    tied = described.config.get("tie_word_embeddings", True)
    decoder = row.words if tied else names.decoder
    holder = names.decoder.rpartition(".")[0]
    biases = [f"{one}.bias" for one in (holder, names.decoder) if f"{one}.bias" in stored.names]
    found = {
        "dense.weight": f"{names.dense}.weight", "dense.bias": f"{names.dense}.bias",
        "norm.weight": f"{names.norm}.weight", "norm.bias": f"{names.norm}.bias",
        "decoder.weight": f"{decoder}.weight",
        "decoder.bias": biases[0] if biases else f"{names.decoder}.bias",
    }  # fmt: skip
    if names.biased:
        return found
    return {name: place for name, place in found.items()
            if not name.endswith(".bias") or place in stored.names}  # fmt: skip


def take_words(described: ModelDescription, stored: MappedTensors) -> dict[str, Floats]:
    """Return all `TENSORS` of a head from a checkpoint, zeros for a bias that is not there."""
    found = {name: stored.floats(place) for name, place in locate_words(described, stored).items()}
    layers = [name.removesuffix(".weight") for name in found if name.endswith(".weight")]
    biases = {f"{one}.bias": np.zeros(len(found[f"{one}.weight"]), np.float32) for one in layers}
    found = biases | found
    check_finite(stored.path, found)
    return found


def read_words(described: ModelDescription) -> tuple[Path, dict[str, Floats]]:
    """Read the tensors of a head, and the path of their file; BundleError for unusable ones."""
    manifest = described.bundle
    words, path = manifest.words, described.folder / Layout.words
    assert words is not None
    if manifest.is_checkpoint:
        stored = open_weights(described)
        path, tensors = stored.path, take_words(described, stored)
    else:
        stored = _open(path)
        inner, expected = words.inner, (words.size, words.inner)
        shapes = [
            (inner, manifest.dimension),
            (inner,),
            (inner,),
            (inner,),
            expected,
            (words.size,),
        ]
        for name, shape in zip(TENSORS, shapes, strict=True):
            if stored.shape(name) != shape:
                raise BundleError(
                    f"{path}: {name} is {list(stored.shape(name))}, not {list(shape)}"
                )
        tensors = {name: stored.floats(name) for name in TENSORS}
        check_finite(path, tensors)
    return path, tensors


def _open(path: Path) -> MappedTensors:
    return MappedTensors(path, [path])


def check_finite(path: Path, tensors: dict[str, Floats]) -> None:
    """Raise BundleError for a weight that is not finite."""
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise BundleError(f"{path}: {name} has weights that are not finite")


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
        return None if length is None else Queries(described, folder / Layout.queries, length)
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
    stored = _open(queries.weights)
    if stored.shape("weight") != (size,):
        raise BundleError(
            f"{queries.weights}: weight is {list(stored.shape('weight'))}, expected [{size}], as "
            "documents have"
        )
    weights = stored.floats("weight").copy()  # what is mapped changes with the file
    check_finite(queries.weights, {"weight": weights})
    return weights
