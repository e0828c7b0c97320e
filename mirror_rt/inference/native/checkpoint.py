"""Find the weights of an encoder in its checkpoint: files of safetensors beside a config.json.

The row of its family says how the tensors are called, and where config.json has the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.bundle.checkpoint_files import checkpoint_family, open_weights, sizes_of, takes_types
from mirror_rt.bundle.declarations import whole
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.families import SHIFTED, Tensors
from mirror_rt.bundle.json_document import to_export
from mirror_rt.inference.native.engine_model import (
    Arguments,
    Embeddings,
    EngineModel,
    Floats,
    Layer,
    Names,
    UnsupportedModelError,
    short,
)
from mirror_rt.inference.native.sizes import check_sizes
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


class Checkpoint:
    """The tensors of a checkpoint in the engine's layout: matrices as [inputs, outputs].

    Args:
        stored: the tensors as they are stored.
        biased: whether matrices and norms have biases.
    """

    def __init__(self, stored: MappedTensors, *, biased: bool) -> None:
        self.path = stored.path
        self._biased = biased
        self._stored = stored
        self._made: dict[str, tuple[tuple[int, ...], Callable[[], Floats]]] = {}
        self._used: set[str] = set()

    def holds(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""
        return name in self._stored.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the engine's layout."""
        return self._made[name][0]

    def floats(self, name: str) -> Floats:
        """Return a tensor in the engine's layout, as float32."""
        return self._made[name][1]()

    def release(self) -> None:
        """Tell the system that the pages that were read are not needed soon."""
        self._stored.release()

    def plain(self, name: str) -> str:
        """Use a tensor as it is stored."""
        self._made[self._find(name)] = self._stored.shape(name), lambda: self._stored.floats(name)
        return name

    def pair(self, name: str) -> Names:
        """Use a norm, and its bias."""
        weight = self.plain(f"{name}.weight")
        return weight, self.plain(f"{name}.bias") if self._biased else ""

    def matrix(self, *names: str) -> Names:
        """Use matrices that are stored as [outputs, inputs], side by side, with their biases."""
        weights = [self._find(f"{name}.weight") for name in names]
        shapes = [self._stored.shape(one) for one in weights]
        alike = all(len(one) == 2 and one[1] == shapes[0][1] for one in shapes)
        if not alike:
            raise UnsupportedModelError(f"{self.path}: {names[0]} is {list(shapes[0])}")
        made = "+".join(names)
        self._made[made] = (
            (shapes[0][1], sum(one[0] for one in shapes)),
            lambda: np.concatenate([self._stored.floats(one).T for one in weights], axis=1),
        )
        if not self._biased:
            return made, ""
        biases = [self._find(f"{name}.bias") for name in names]
        self._made[f"{made}.bias"] = (
            (sum(self._stored.shape(one)[0] for one in biases),),
            lambda: np.concatenate([self._stored.floats(one) for one in biases]),
        )
        return made, f"{made}.bias"

    def computed(self, name: str, values: Floats) -> str:
        """Use numbers that no file has."""
        self._made[name] = values.shape, lambda: values
        return name

    def check_unused(self, *parts: str) -> None:
        """Raise UnsupportedModelError if there is a tensor in one of the `parts` that none took."""
        for name in sorted({*self._stored.names} - self._used):
            if name.startswith(parts) and not name.endswith(_BUFFERS):
                raise UnsupportedModelError(
                    f"{self.path} has the tensor {short(name)}, which its config.json does not "
                    "describe: it is of another model, or of an adapter to be merged"
                )

    def _find(self, name: str) -> str:
        self._used.add(name)
        return name


def read_checkpoint(described: ModelDescription, longest: int, pooling: str) -> EngineModel:
    """Find the encoder of a folder in its checkpoint.

    Args:
        described: what the folder declares.
        longest: most tokens of a text.
        pooling: how token vectors become one.

    Raises:
        UnsupportedModelError: the engine does not compute the model; the message says what to do.
        BundleError: a file of weights is damaged.
    """
    config, names = described.config, _tensors(described)
    checkpoint = Checkpoint(open_weights(described), biased=names.biased)
    with sizes_of(described):
        embeddings = _embeddings(checkpoint, names, config, typed=takes_types(described))
        layers = _layers(checkpoint, names, config)
        checkpoint.check_unused("embeddings.", names.layer.partition("{")[0])
        hidden = check_sizes(checkpoint, embeddings, layers, longest)
    return EngineModel(checkpoint, longest, hidden, embeddings, layers, pooling, [])


def _tensors(described: ModelDescription) -> Tensors:
    """Return the names of a family's tensors, where its options are those that are computed."""
    names = checkpoint_family(described).tensors
    assert names is not None
    for key, plain in _PLAIN.items():
        if (value := described.config.get(key)) not in plain:
            raise _not_computed(described.transformer, f"{key} {value!r}")
    return names


def _not_computed(folder: Path, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{folder / 'config.json'}: the native engine does not compute {what}; {to_export(folder)}"
    )


def _embeddings(
    checkpoint: Checkpoint, names: Tensors, config: Mapping[str, Any], *, typed: bool
) -> Embeddings:
    shifted = config.get("model_type") in SHIFTED
    padding = config.get("pad_token_id", 1)
    if shifted and whole(padding) is None:
        raise _not_computed(checkpoint.path.parent, f"pad_token_id {padding!r}")
    key, default = names.epsilon
    projected = names.projection and checkpoint.holds(f"{names.projection}.weight")
    return Embeddings(
        words=checkpoint.plain(f"{names.words}.weight"),
        norm=checkpoint.pair(names.norm),
        epsilon=float(config.get(key, default)),
        positions=checkpoint.plain(f"{names.positions}.weight") if names.positions else "",
        types=checkpoint.plain(f"{names.types}.weight") if names.types else "",
        typed=typed and names.types != "",
        first=padding + 1 if shifted else 0,
        skipped_id=padding if shifted else -1,
        projection=checkpoint.matrix(names.projection) if projected else ("", ""),
        modern=bool(names.last_norm),
    )


def _layers(checkpoint: Checkpoint, names: Tensors, config: Mapping[str, Any]) -> list[Layer]:
    """Return the layers in the order in which they are computed; groups share their weights."""
    count, heads = (_size(checkpoint, config, key) for key in (names.layers, names.heads))
    groups, inner = count, 1
    if names.layer.count("{}") > 1:
        groups = _size(checkpoint, config, "num_hidden_groups", 1)
        inner = _size(checkpoint, config, "inner_group_num", 1)
    if count * inner > _MOST_LAYERS or groups > count:
        raise _not_computed(checkpoint.path.parent, f"{count * inner} layers in {groups} groups")
    places = [
        names.layer.format(int(i / (count / groups)), j) for i in range(count) for j in range(inner)
    ]
    relative = checkpoint.plain(f"{names.relative}.weight") if names.relative else ""
    kinds = _kinds(checkpoint, config, count) if names.last_norm else [""] * len(places)
    layers = []
    for place, following, kind in zip(places, [*places[1:], ""], kinds, strict=True):
        weights = _weights(checkpoint, names, place, following)
        common = _common(checkpoint, weights, heads, config.get(*names.activation))
        size = checkpoint.shape(weights["attention_out"][0])[0] // heads
        rotary = _frequencies(checkpoint, config, kind, size) if kind else ""
        window = _size(checkpoint, config, "local_attention", 128) // 2 if kind == _LOCAL else 0
        layers.append(Layer(common, weights, relative, window, rotary))
    return layers


def _weights(
    checkpoint: Checkpoint, names: Tensors, place: str, following: str
) -> dict[str, Names]:
    """Return the weights of a layer; a norm before the next one counts as this one's last."""
    out_norm = place + names.out_norm
    if names.last_norm:
        out_norm = following + names.first_norm if following else names.last_norm
    return {
        "query_key_value": checkpoint.matrix(*(place + name for name in names.query_key_value)),
        "attention_out": checkpoint.matrix(place + names.attention_out),
        "attention_norm": checkpoint.pair(place + names.attention_norm),
        "inner": checkpoint.matrix(place + names.inner),
        "out": checkpoint.matrix(place + names.out),
        "out_norm": checkpoint.pair(out_norm),
    }


def _common(
    checkpoint: Checkpoint, weights: dict[str, Names], heads: int, activation: Any
) -> Arguments:
    hidden, inner = (checkpoint.shape(weights[name][0])[0] for name in ("attention_out", "out"))
    if activation not in _ACTIVATIONS:
        raise _not_computed(checkpoint.path.parent, f"the activation {activation!r}")
    if hidden % heads:
        raise _not_computed(checkpoint.path.parent, f"{heads} heads of {hidden} numbers")
    return {
        "heads": heads,
        "inner": inner,
        "scale": (hidden // heads) ** -0.5,
        "activation": _ACTIVATIONS[activation],
    }


def _kinds(checkpoint: Checkpoint, config: Mapping[str, Any], count: int) -> list[str]:
    """Return whether each layer attends to all tokens, or to those in a window."""
    every = _size(checkpoint, config, "global_attn_every_n_layers", 3)
    usual = [_LOCAL if i % every else _FULL for i in range(count)]
    kinds = config.get("layer_types") or usual
    if not isinstance(kinds, list) or len(kinds) != count or not {*kinds} <= {*_THETA}:
        raise _not_computed(checkpoint.path.parent, f"layer_types {kinds!r:.200}")
    return kinds


def _frequencies(checkpoint: Checkpoint, config: Mapping[str, Any], kind: str, size: int) -> str:
    """Return the name of the frequencies by which positions of heads of `size` are rotated."""
    key, usual = _THETA[kind]
    given = (config.get("rope_parameters") or {}).get(kind) or {}
    theta = given.get("rope_theta", config.get(key, usual))
    plain = given.keys() <= {"rope_type", "rope_theta"} and given.get("rope_type") in (
        None,
        "default",
    )
    if not plain or not isinstance(theta, int | float) or not 1 < theta < 1e12:
        raise _not_computed(checkpoint.path.parent, f"a rotation by {given or theta!r:.200}")
    # As PyTorch rounds them: each step in float32, and the power to its nearest.
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    powers = (float(theta) ** exponents.astype(np.float64)).astype(np.float32)
    return checkpoint.computed(f"rotary.{kind}", np.float32(1) / powers)


def _size(
    checkpoint: Checkpoint, config: Mapping[str, Any], key: str, usual: int | None = None
) -> int:
    found = whole(config.get(key, usual))
    if not found or found > _MOST_SIZE:
        raise _not_computed(checkpoint.path.parent, f"{key} {config.get(key)!r:.80}")
    return found
