"""Find the weights of an encoder: in files of safetensors, or in the file of a bundle's fp32 graph.

The row of its family says how the tensors are called, and where config.json has the sizes. What a
bundle holds is in the table of its manifest, by the same names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.checkpoint_files import checkpoint_family, open_weights, sizes_of, takes_types
from mirror_rt.bundle.declarations import whole
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.families import SHIFTED, Tensors, is_causal
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.manifest import Layout
from mirror_rt.errors import BundleError
from mirror_rt.inference.native.engine_model import (
    EngineModel,
    Floats,
    Layer,
    Pair,
    UnsupportedModelError,
    Weight,
    check_sizes,
)
from mirror_rt.inference.native.rotation import EXACT, Rotation
from mirror_rt.inference.vector_layers import TextHead
from mirror_rt.io.tensors import MappedTensors

# The names of activations in config.json.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
                "silu": "silu", "swish": "silu", "relu": "relu"}  # fmt: skip
# Values of config.json with which a model needs a computation that the engine lacks.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, None),
    "position_embedding_type": ("absolute", None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rotary_value": (False, None),
    "use_sliding_window": (False, None),
    "attn_logit_softcapping": (None,),
}
# Tensors that libraries keep beside the weights, and compute anew.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
_MOST_SIZE, _MOST_LAYERS = 1_000_000, 1000
_LIMIT = "max_position_embeddings"
_DISTANCES = ("max_relative_positions", "position_buckets")
_FULL, _LOCAL = "full_attention", "sliding_attention"
# The matrices of a layer, and its norms that only some families have.
_MATRICES = ("query_key_value", "attention_out", "inner", "out")
_FURTHER_NORMS = ("query_norm", "key_norm", "attention_after", "out_after")


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
    for key, plain in {**_PLAIN, **names.plain}.items():
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
        layers, heads = self.layers(), self.size(names.heads)
        hidden = layers[0].weights["attention_out"].weight.shape[-1]
        key_heads, size = (
            self.size(key) if names.grouped and config.get(key) is not None else usual
            for key, usual in (("num_key_value_heads", heads), ("head_dim", hidden // heads))
        )
        if (hidden % heads and not names.grouped) or heads % key_heads:
            raise _not_computed(self.described, f"{heads} heads of {hidden} numbers")
        if names.rotations and size % 2:
            raise _not_computed(self.described, f"heads of {size} numbers, which rotate in pairs")
        scale = float(config.get("query_pre_attn_scalar", size) if names.scaled else size)
        types = self.table(names.types if config.get("type_vocab_size", 1) else "")
        first_norm = names.norm or names.layer.format(0) + names.first_norm
        model = EngineModel(
            path=self.stored.path,
            release=self.stored.release,
            head=TextHead(self.described, hidden),
            longest=manifest.max_length,
            kind={
                "heads": heads,
                "key_heads": key_heads,
                "size": size,
                "scale": (scale * (3 if names.distances else 1)) ** -0.5,  # of three products
                "word_scale": hidden**0.5 if names.scaled else 1.0,
                "activation": _ACTIVATIONS[activation],
                "gated": names.gated,
                "pre_norm": names.last_norm != "",
                "raw": names.norm == "",
                "centred": names.centred,
                "causal": self.causal,
                "epsilon": float(config.get(*names.epsilon)),
                "skipped_id": padding if shifted else -1,
            },
            typed=typed and types is not None,
            first=padding + 1 if shifted else 0,
            words=self.weight(f"{names.words}.weight"),
            positions=self.table(names.positions),
            types=types,
            norm=self.norm(first_norm),
            projection=self.matrix(names.projection) if projected else None,
            relative=self.table(names.relative),
            distances=self.distances() if names.distances else None,
            buckets=self.buckets() if names.distances else (0, 0),
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
        kinds = self.kinds(count) if names.rotations else [_FULL] * len(places)
        return [
            Layer(
                place,
                self.weights(place, following),
                self.window() if kind == _LOCAL else 0,
                self.rotation(kind) if names.rotations else None,
            )
            for place, following, kind in zip(places, [*places[1:], ""], kinds, strict=True)
        ]

    def weights(self, place: str, following: str) -> dict[str, Pair]:
        """Return the weights of a layer; a norm before the next one counts as this one's last."""
        names = self.names
        out_norm = place + names.out_norm
        if names.last_norm:
            out_norm = following + names.first_norm if following else names.last_norm
        matrices = {name: getattr(names, name) for name in _MATRICES}
        further = {name: getattr(names, name) for name in _FURTHER_NORMS}
        return {
            **{
                name: self.matrix(*(place + one for one in of), biased=name in names.biased)
                for name, of in matrices.items()
            },
            "attention_norm": self.norm(place + names.attention_norm),
            "out_norm": self.norm(out_norm),
            **{name: self.norm(place + one) for name, one in further.items() if one},
        }

    def buckets(self) -> tuple[int, int]:
        """Return the `buckets` of the model."""
        own, shared = (self.config.get(key, -1) for key in _DISTANCES)
        farthest = self.size(_DISTANCES[0] if own > 0 else _LIMIT)
        if shared <= 0:
            return farthest, 0
        span = self.size(_DISTANCES[1])
        if not 1 <= span // 2 < farthest - 1:
            raise _not_computed(self.described, f"{span} buckets of {farthest} distances")
        return span, farthest

    def distances(self) -> Weight:
        """Return the normalised vectors of distances."""
        place, norm = self.names.distances
        if (name := f"{norm}({place})") in self.stored.names:
            return self.weight(name)
        ends = (f"{place}.weight", f"{norm}.weight", f"{norm}.bias")
        vectors, *scales = parts = tuple(map(self.weight, ends))
        if any(one.shape != vectors.shape[1:] for one in scales):
            raise UnsupportedModelError(f"{self.stored.path}: {place} is {list(vectors.shape)}")
        epsilon = float(self.config.get(*self.names.epsilon))

        @np.errstate(all="ignore")  # a number that is not finite is seen in the vectors of texts
        def normed() -> Floats:
            x, weight, bias = (one.read().astype(np.float64) for one in parts)
            x -= x.mean(axis=1, keepdims=True)
            x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + epsilon)
            return (x * weight + bias).astype(np.float32)

        return Weight(name, vectors.shape, normed, parts)

    @property
    def causal(self) -> bool:
        """Whether tokens attend to none behind them."""
        usual = self.names.causal
        given = self.config.get("is_causal", usual)
        if given not in ((True, False) if usual else (False, None)):
            raise _not_computed(self.described, f"is_causal {given!r:.80}")
        return is_causal(self.config, self.names)

    def kinds(self, count: int) -> list[str]:
        """Return whether each layer attends to all tokens, or to those in a window."""
        key, usual, place = self.names.full_every
        every = self.size(key, usual) if key else usual
        windowed = self.config.get(self.names.window, self.names.usual_window) is not None
        kinds = self.config.get("layer_types") or [
            _LOCAL if windowed and (every == 0 or (i + place) % every) else _FULL
            for i in range(count)
        ]
        if not isinstance(kinds, list) or len(kinds) != count or not {*kinds} <= {_FULL, _LOCAL}:
            raise _not_computed(self.described, f"layer_types {kinds!r:.200}")
        return kinds

    def window(self) -> int:
        """Return how far a token attends in a window: to both sides by halves of it."""
        causal, key = self.causal, self.names.window
        width = self.size(key, self.names.usual_window) if key else 0
        halved = not self.names.causal or self.config.get(self.names.both_ways)
        if width < 2 or not (causal or halved):
            raise _not_computed(self.described, f"a window of {width} tokens")
        own = width // 2 if self.names.one_side else width
        return own - 1 if causal else width // 2

    def rotation(self, kind: str) -> Rotation:
        """Return by what the positions rotate queries and keys in a kind of layers."""
        key, usual = self.names.rotations.get(kind) or self.names.rotations[_FULL]
        if self.names.neighbours:
            return Rotation(usual, EXACT, ())
        given = self.config.get("rope_parameters") or {}
        given = given.get(kind, {} if {_FULL, _LOCAL} & given.keys() else given) or {}
        given = given or (self.config.get("rope_scaling") if kind == _FULL else None) or {}
        try:
            made = Rotation.of(given, self.config.get(key, usual))
        except ValueError as error:
            raise _not_computed(self.described, str(error)) from None
        if made.scaling == "dynamic" and self.described.bundle.max_length > self.size(_LIMIT):
            raise _not_computed(self.described, f"frequencies beyond {_LIMIT}")
        return made

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
        more = f"1+{name}.weight"
        weight = self.weight(more if more in self.stored.names else f"{name}.weight")
        if self.names.scaled and weight.name != more:  # the stored gain is added to 1
            read = weight.read
            weight = Weight(more, weight.shape, lambda: np.float32(1) + read(), (weight,))
        return Pair(weight, self.joined([f"{name}.bias"]) if "norms" in self.names.biased else None)

    def matrix(self, *names: str, biased: bool = True) -> Pair:
        """Return matrices of the same inputs side by side, with their biases."""
        bias = self.joined([f"{name}.bias" for name in names]) if biased else None
        return Pair(self.joined([*names]), bias)

    def joined(self, names: list[str]) -> Weight:
        """Return matrices or biases side by side, each with outputs last; or all at once."""
        name = "+".join(one.removesuffix(".bias") for one in names)
        name += ".bias" * names[0].endswith(".bias")
        if len(names) > 1 and name in self.stored.names:
            return self.weight(name)
        parts = [self.part(one) for one in names]
        if len({one.shape[:-1] for one in parts}) != 1:
            raise UnsupportedModelError(f"{self.stored.path}: {names[0]} is {list(parts[0].shape)}")
        if len(parts) == 1:
            return parts[0]
        shape = (*parts[0].shape[:-1], sum(one.shape[-1] for one in parts))
        read = [one.read for one in parts]

        def side_by_side() -> Floats:  # at once, without a copy of each part in between
            made = np.concatenate([one() for one in read], axis=-1, out=np.empty(shape, np.float32))
            return made[..., self.halves(shape[-1])] if self.names.neighbours else made

        return Weight(name, shape, side_by_side, tuple(parts))

    def halves(self, columns: int) -> npt.NDArray[np.intp]:
        """Return the order in which neighbours of queries and keys are half a head apart."""
        places = np.arange(columns).reshape(3, self.size(self.names.heads), -1)
        places[:2] = np.concatenate([places[:2, :, ::2], places[:2, :, 1::2]], axis=-1)
        return places.ravel()

    def part(self, name: str) -> Weight:
        """Return a bias, or a matrix with outputs last, as which bundles have it."""
        if name.endswith(".bias") or name in self.stored.names:
            return self.weight(name)
        weight = self.weight(f"{name}.weight")
        if len(weight.shape) != 2:
            raise UnsupportedModelError(f"{self.stored.path}: {name} is {list(weight.shape)}")
        return Weight(name, weight.shape[::-1], lambda: weight.read().T)

    def refuse_others(self, *parts: str) -> None:
        """Raise UnsupportedModelError if there is a tensor in one of the `parts` that none took."""
        for name in sorted({*self.stored.names} - self.used):
            if name.startswith(parts) and not name.endswith(_BUFFERS):
                raise UnsupportedModelError(
                    f"{self.stored.path} has the tensor {name[:100]!r}, which its config.json does "
                    "not describe: it is of another model, or of an adapter to be merged"
                )
