"""Read the head of a cross-encoder from its checkpoint: linear layers and an activation."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.checkpoint_files import (
    checkpoint_family,
    native_variants,
    open_weights,
    sizes_of,
    with_history,
)
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.families import Family, Tensors
from mirror_rt.bundle.graph_header import read_header
from mirror_rt.bundle.manifest import Layout, Manifest, PoolingMode, Variant
from mirror_rt.bundle.plain_manifest import LOGITS, derived_manifest, width
from mirror_rt.bundle.score_layers import LayerActivation, ScoreActivation, ScoreLayer, ScoreLayers
from mirror_rt.errors import BundleError
from mirror_rt.io.tensors import MappedTensors

Floats = npt.NDArray[np.float32]
# transformers' names of activations, where they are not ours.
NAMES: dict[str, LayerActivation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "linear": "identity",
    "swish": "silu",
}
_ANSWERED = 8192  # tokens of a pair, by Qwen3-Reranker's model card
_USUAL_LABELS = 2  # where config.json names none
# transformers' names of poolings, and ours.
_POOLINGS: dict[str, PoolingMode] = {
    "cls": "cls", "bos": "cls", "mean": "mean", "lasttoken": "lasttoken"
}  # fmt: skip


class Head(NamedTuple):
    """The head of a cross-encoder.

    Attributes:
        pooling: that of the vector which it reads.
        described: its layers.
        weights: of each layer the matrix, the bias, and where it has a normalisation its two.
    """

    pooling: PoolingMode
    described: ScoreLayers
    weights: list[list[Floats]]


def read_head(described: ModelDescription) -> Head:
    """Read the head of a cross-encoder from its weights in safetensors; errors as `head_of`."""
    family, stored = checkpoint_family(described), open_weights(described)
    if described.answers:
        return _answer_head(described, stored)
    return head_of(described, family, stored.names, stored.floats)


def _answer_head(described: ModelDescription, stored: MappedTensors) -> Head:
    """Make the head that gives how much more likely `yes` is than `no` as the next token."""
    path = described.transformer / Layout.tokenizer
    try:
        vocabulary = json.loads(described.tokenizer.content or path.read_bytes())["model"]["vocab"]
        tokens = [int(vocabulary[answer]) for answer in ("yes", "no")]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise BundleError(f"{path} has no tokens for yes and no: {error}") from error
    for module in described.modules:
        of_module = [module.declared.values.get(f"{name}_token_id") for name in ("true", "false")]
        if module.name == "LogitScore" and of_module != tokens:
            raise BundleError(f"{module.folder} scores by other tokens than yes and no, {tokens}")
    name = "lm_head" if "lm_head.weight" in stored.names else "embed_tokens"
    yes, no = stored.floats(f"{name}.weight")[tokens]
    layer = ScoreLayer(len(yes), 1)
    head = ScoreLayers([layer], ["yes"], score_activation(described, 1))
    return Head("lasttoken", head, [[(yes - no)[None], np.zeros(1, np.float32)]])


def head_of(
    described: ModelDescription,
    family: Family,
    stored: Collection[str],
    floats: Callable[[str], Floats],
) -> Head:
    """Make the head of a cross-encoder of its weights.

    `stored` are the names of all tensors, those of the encoder without the prefix of the family,
    and `floats` reads one. BundleError says that tensors are missing or do not fit one another.
    """
    names, row, path = family.classifier, family.tensors or Tensors(""), described.transformer
    if names is None:
        raise BundleError(
            f"{path}: the head of its family is not known; --pooling cls or mean exports its "
            "encoder without it"
        )

    def vector(name: str, size: int, *, optional: bool = not names.biased) -> Floats:
        if optional and name not in stored:
            return np.zeros(size, np.float32)
        if (found := floats(name)).shape != (size,):
            raise BundleError(f"{path}: {name} has the shape {found.shape}, expected [{size}]")
        return found

    steps = [(names.out, "identity", "")]
    if names.dense:
        kind = _setting(described, names.activation, (*get_args(LayerActivation), *NAMES), "gelu")
        steps.insert(0, (names.dense, kind, names.norm))
    layers, weights = [], []
    for name, activation, norm in steps:
        own = name.removeprefix(f"{row.prefix}.")
        matrix = floats(f"{own}.weight")
        if matrix.ndim != 2:
            raise BundleError(f"{path}: {own}.weight has the shape {matrix.shape}")
        size = len(matrix)
        arrays = [matrix, vector(f"{own}.bias", size)]
        epsilon = float(described.config.get(*row.epsilon)) if norm else None
        if norm:
            arrays.append(vector(f"{norm}.weight", size, optional=False))
            arrays.append(vector(f"{norm}.bias", size))
        made = NAMES.get(activation, cast(LayerActivation, activation))
        layers.append(ScoreLayer(matrix.shape[1], size, made, epsilon))
        weights.append(arrays)
    labels = _labels(described.config, layers[-1].outputs)
    head = ScoreLayers(layers, labels, score_activation(described, len(labels)))
    pooling = _setting(described, names.pooling, [*_POOLINGS], names.usual_pooling)
    return Head(_POOLINGS[pooling], head, weights)


def describe_cross_encoder(described: ModelDescription) -> Manifest:
    """Return the manifest of a cross-encoder with its weights in safetensors."""
    folder = described.folder
    _check_pairs(described)
    with sizes_of(described):
        head, dimension = read_head(described), width(described)
    if problem := head.described.problem(dimension):
        raise BundleError(f"{folder}: the head does not fit its encoder: {problem}")
    made = derived_manifest(
        described,
        dimension=dimension,
        pooling=head.pooling,
        normalize=False,
        scores=asdict(head.described),
        variants={name: asdict(one) for name, one in native_variants(described).items()},
        format="safetensors files",
    )
    if described.answers:
        made = replace(made, max_length=min(made.max_length, _ANSWERED))
    return with_history(described, made)


def describe_scoring_graphs(described: ModelDescription, variants: dict[str, Variant]) -> Manifest:
    """Return the manifest of ONNX files of a cross-encoder, whose graphs give logits themselves.

    Its head has no layers, and its dimension is the number of labels.
    """
    _check_pairs(described)
    path = described.folder / next(iter(variants.values())).file
    sizes = read_header(path).outputs.get(LOGITS)
    if sizes is None or len(sizes) != 2:
        raise BundleError(f"{path} gives no {LOGITS} of pairs")
    labels = _labels(described.config, sizes[1] or _USUAL_LABELS)
    if sizes[1] not in (None, len(labels)):
        raise BundleError(
            f"{path} gives {sizes[1]} {LOGITS}, config.json names {len(labels)} labels"
        )
    head = ScoreLayers([], labels, score_activation(described, len(labels)))
    output = {"graph": {"output": LOGITS, "width": len(labels)}}
    return derived_manifest(
        described,
        dimension=len(labels),
        pooling="cls",  # of no meaning here
        normalize=False,
        scores=asdict(head),
        variants={name: asdict(variant) | output for name, variant in variants.items()},
        format="ONNX files",
    )


def _check_pairs(described: ModelDescription) -> None:
    described.check_kind("CrossEncoder")
    if not described.is_classifier and not described.answers:
        raise BundleError(
            f"{described.folder} scores no pairs: it is no sequence classification, and no "
            "language model by the name of Qwen3-Reranker, the only one whose form is known"
        )


def score_activation(described: ModelDescription, labels: int) -> ScoreActivation:
    """Return the function that makes scores of logits, as sentence-transformers finds it.

    Its folders name a class of torch in config_sentence_transformers.json (from version 6), or in
    config.json; without one it is a sigmoid for one label, and nothing for several.
    """
    of_library = described.config.get("sentence_transformers") or {}
    old = described.config.get("sbert_ce_default_activation_function")
    path = described.activation or of_library.get("activation_fn") or old
    if path is None:
        return "sigmoid" if labels == 1 else "identity"
    name = str(path).rpartition(".")[2].lower()
    known: dict[str, ScoreActivation] = {one: one for one in get_args(ScoreActivation)}
    if not str(path).startswith("torch.") or name not in known:
        raise BundleError(
            f"{described.folder} declares the activation {path!r}; known are those of torch.nn "
            f"that make scores: {', '.join(known)}"
        )
    return known[name]


def _setting(described: ModelDescription, name: str, known: Sequence[str], usual: str) -> str:
    """Return a value of a head: the name itself, or that of the field of config.json."""
    value = name if name in known else described.config.get(name, usual)
    if value not in known:
        raise BundleError(
            f"{described.transformer / 'config.json'}: {name} is {value!r}, which has no "
            f"implementation here; there are {', '.join(known)}"
        )
    return str(value)


def _labels(config: Mapping[str, Any], outputs: int) -> list[str]:
    given = config.get("id2label")
    if not isinstance(given, dict) or not all(name.isdecimal() for name in given):
        return [f"LABEL_{number}" for number in range(outputs)]
    return [str(given[number]) for number in sorted(given, key=int)]
