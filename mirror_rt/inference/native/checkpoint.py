"""Find the weights of an encoder: in files of safetensors, or in the file of a bundle's fp32 graph.

The row of its family says how the tensors are called, and where config.json has the sizes. What a
bundle holds is in the table of its manifest, by the same names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirror_rt.bundle.checkpoint_files import checkpoint_family, open_weights, sizes_of, takes_types
from mirror_rt.bundle.declarations import whole
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.families import SHIFTED, Tensors
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.manifest import Layout
from mirror_rt.errors import BundleError
from mirror_rt.inference.native.engine_model import (
    EngineModel,
    Layer,
    Pair,
    UnsupportedModelError,
    Weight,
    check_sizes,
)
from mirror_rt.inference.vector_layers import TextHead
from mirror_rt.io.tensors import MappedTensors

# The names of activations in config.json.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
# Values of config.json with which a model computes what the engine does not.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, None),
    "position_embedding_type": ("absolute", None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
}
# What libraries keep beside the weights, and compute anew.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
_MOST_SIZE, _MOST_LAYERS = 1_000_000, 1000
_FULL, _LOCAL = "full_attention", "sliding_attention"
_THETA = {_FULL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}


def read_encoder(described: ModelDescription) -> EngineModel:
    """Find the encoder of a folder: of a bundle, or with weights in safetensors.

    Raises:
        UnsupportedModelError: the engine does not compute the model; the message says what to do.
        BundleError: a file of weights is damaged.
    """
    manifest = described.bundle
    if manifest.is_checkpoint:
        return find_encoder(described, open_weights(described), typed=takes_types(described))
    _family(described)
    table = manifest.native
    if table is None or table.sha256 != manifest.files[table.file].sha256:
        raise UnsupportedModelError(
            f"{described.folder / Layout.manifest} has no table of the weights in its graph as it "
            "is, which an export writes for models that the native engine computes: export it again"
        )
    stored = MappedTensors.of_table(described.folder / table.file, table.tensors)
    return find_encoder(described, stored, typed=table.typed)


def find_encoder(described: ModelDescription, stored: MappedTensors, *, typed: bool) -> EngineModel:
    """Find the encoder that a folder describes among its tensors; errors as `read_encoder`.

    They are as a checkpoint has them, or in the engine's layout. `typed` says whether tokens of
    several types are told apart.
    """
    names, manifest = _family(described), described.bundle
    with sizes_of(described):
        model = _Finder(described, names, stored).find(typed=typed)
        check_sizes(model)
    if model.head.dimension != manifest.dimension:
        raise UnsupportedModelError(
            f"{described.folder} gives {model.head.dimension} dimensions, its manifest says "
            f"{manifest.dimension}"
        )
    return model


def _family(described: ModelDescription) -> Tensors:
    """Return the names of a family's tensors, where its options are those that are computed."""
    try:
        names = checkpoint_family(described).tensors
    except BundleError as error:
        raise UnsupportedModelError(str(error)) from None
    assert names is not None
    for key, plain in _PLAIN.items():
        if (value := described.config.get(key)) not in plain:
            raise _not_computed(described, f"{key} {value!r}")
    return names


def _not_computed(described: ModelDescription, what: str) -> UnsupportedModelError:
    path = described.transformer / "config.json"
    return UnsupportedModelError(
        f"{path}: the native engine does not compute {what}; {to_export(path.parent)}"
    )


class _Finder:
    """Finds the weights of one encoder, each once or more often."""

    def __init__(self, described: ModelDescription, names: Tensors, stored: MappedTensors) -> None:
        self.described, self.config = described, described.config
        self.names, self.stored = names, stored
        self.used: set[str] = set()

    def find(self, *, typed: bool) -> EngineModel:
        """Return the encoder, of all of whose sizes nothing was checked."""
        names, config, manifest = self.names, self.config, self.described.bundle
        shifted, padding = config.get("model_type") in SHIFTED, config.get("pad_token_id", 1)
        if shifted and whole(padding) is None:
            raise _not_computed(self.described, f"pad_token_id {padding!r}")
        if (activation := config.get(*names.activation)) not in _ACTIVATIONS:
            raise _not_computed(self.described, f"the activation {activation!r}")
        projected = {names.projection, f"{names.projection}.weight"} & {*self.stored.names}
        layers, modern = self.layers(), bool(names.last_norm)
        hidden = layers[0].weights["attention_out"].weight.shape[0]
        heads = self.size(names.heads)
        if hidden % heads or (modern and hidden // heads % 2):
            raise _not_computed(self.described, f"{heads} heads of {hidden} numbers")
        model = EngineModel(
            path=self.stored.path,
            release=self.stored.release,
            head=TextHead(self.described, hidden),
            longest=manifest.max_length,
            heads=heads,
            activation=_ACTIVATIONS[activation],
            modern=modern,
            epsilon=float(config.get(*names.epsilon)),
            typed=typed and names.types != "",
            first=padding + 1 if shifted else 0,
            skipped_id=padding if shifted else -1,
            words=self.weight(f"{names.words}.weight"),
            positions=self.table(names.positions),
            types=self.table(names.types),
            norm=self.norm(names.norm),
            projection=self.matrix(names.projection) if projected else None,
            relative=self.table(names.relative),
            layers=layers,
        )
        self.refuse_others("embeddings.", names.layer.partition("{")[0])
        return model

    def layers(self) -> list[Layer]:
        """Return the layers in the order in which they are computed; groups share their weights."""
        names, count = self.names, self.size(self.names.layers)
        groups, inner = count, 1
        if names.layer.count("{}") > 1:
            groups, inner = self.size("num_hidden_groups", 1), self.size("inner_group_num", 1)
        if count * inner > _MOST_LAYERS or groups > count:
            raise _not_computed(self.described, f"{count * inner} layers in {groups} groups")
        places = [
            names.layer.format(int(i / (count / groups)), j)
            for i in range(count) for j in range(inner)
        ]  # fmt: skip
        kinds = self.kinds(count) if names.last_norm else [""] * len(places)
        return [
            Layer(
                place,
                self.weights(place, following),
                self.size("local_attention", 128) // 2 if kind == _LOCAL else 0,
                self.theta(kind) if kind else 0.0,
            )
            for place, following, kind in zip(places, [*places[1:], ""], kinds, strict=True)
        ]

    def weights(self, place: str, following: str) -> dict[str, Pair]:
        """Return the weights of a layer; a norm before the next one counts as this one's last."""
        names = self.names
        out_norm = place + names.out_norm
        if names.last_norm:
            out_norm = following + names.first_norm if following else names.last_norm
        return {
            "query_key_value": self.matrix(*(place + name for name in names.query_key_value)),
            "attention_out": self.matrix(place + names.attention_out),
            "attention_norm": self.norm(place + names.attention_norm),
            "inner": self.matrix(place + names.inner),
            "out": self.matrix(place + names.out),
            "out_norm": self.norm(out_norm),
        }

    def kinds(self, count: int) -> list[str]:
        """Return whether each layer attends to all tokens, or to those in a window."""
        every = self.size("global_attn_every_n_layers", 3)
        usual = [_LOCAL if i % every else _FULL for i in range(count)]
        kinds = self.config.get("layer_types") or usual
        if not isinstance(kinds, list) or len(kinds) != count or not {*kinds} <= {*_THETA}:
            raise _not_computed(self.described, f"layer_types {kinds!r:.200}")
        return kinds

    def theta(self, kind: str) -> float:
        """Return the base of the frequencies by which positions are rotated."""
        key, usual = _THETA[kind]
        given = (self.config.get("rope_parameters") or {}).get(kind) or {}
        theta = given.get("rope_theta", self.config.get(key, usual))
        plain = given.keys() <= {"rope_type", "rope_theta"}
        plain = plain and given.get("rope_type") in (None, "default")
        if not plain or not isinstance(theta, int | float) or not 1 < theta < 1e12:
            raise _not_computed(self.described, f"a rotation by {given or theta!r:.200}")
        return float(theta)

    def size(self, key: str, usual: int | None = None) -> int:
        """Return a size that config.json says."""
        found = whole(self.config.get(key, usual))
        if not found or found > _MOST_SIZE:
            raise _not_computed(self.described, f"{key} {self.config.get(key)!r:.80}")
        return found

    def weight(self, name: str) -> Weight:
        """Return a tensor as it is stored."""
        self.used.add(name)
        return Weight(name, self.stored.shape(name), lambda: self.stored.floats(name))

    def table(self, name: str) -> Weight | None:
        """Return a table of embeddings; None for one that the family does not have."""
        return self.weight(f"{name}.weight") if name else None

    def norm(self, name: str) -> Pair:
        """Return a norm."""
        return Pair(self.weight(f"{name}.weight"), self.bias(name))

    def bias(self, *names: str) -> Weight | None:
        """Return biases, joined, in a family that has them."""
        biased = [self.weight(f"{name}.bias") for name in names if self.names.biased]
        return self.joined(f"{'+'.join(names)}.bias", biased) if biased else None

    def matrix(self, *names: str) -> Pair:
        """Return matrices of the same inputs side by side, with their biases."""
        joined = "+".join(names)
        if joined in self.stored.names:
            return Pair(self.weight(joined), self.bias(joined))
        weights = [self.weight(f"{name}.weight") for name in names]
        if not all(len(one.shape) == 2 and one.shape[1] == weights[0].shape[1] for one in weights):
            raise UnsupportedModelError(
                f"{self.stored.path}: {names[0]} is {list(weights[0].shape)}"
            )
        return Pair(self.joined(joined, weights), self.bias(*names))

    @staticmethod
    def joined(name: str, parts: list[Weight]) -> Weight:
        """Return tensors whose first dimension is that of outputs as one, with outputs last."""
        shape = (*parts[0].shape[1:], sum(one.shape[0] for one in parts))
        return Weight(name, shape, lambda: np.concatenate([one.read().T for one in parts], axis=-1))

    def refuse_others(self, *parts: str) -> None:
        """Raise UnsupportedModelError if there is a tensor in one of the `parts` that none took."""
        for name in sorted({*self.stored.names} - self.used):
            if name.startswith(parts) and not name.endswith(_BUFFERS):
                raise UnsupportedModelError(
                    f"{self.stored.path} has the tensor {name[:100]!r}, which its config.json does "
                    "not describe: it is of another model, or of an adapter to be merged"
                )
