"""Find the weights of the head of a masked language model, which makes logits of words."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.checkpoint_files import checkpoint_family, open_weights
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.plain_manifest import width
from mirror_rt.bundle.word_layers import WordLayers
from mirror_rt.errors import BundleError
from mirror_rt.io.tensors import MappedTensors

Floats = npt.NDArray[np.float32]
# The tensors of a head in a bundle, all of which are there.
TENSORS = tuple(f"{layer}.{part}" for layer in ("dense", "norm", "decoder")
                for part in ("weight", "bias"))  # fmt: skip


class WordNames(NamedTuple):
    """The names that a family's checkpoints give to the head of a masked language model.

    Attributes:
        dense, norm, decoder: its layers; the bias of the last one may be that of its parent.
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


def word_shapes(described: ModelDescription, stored: MappedTensors) -> tuple[int, int]:
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


def head_names(described: ModelDescription) -> WordNames:
    """Return the names of the head of a family; BundleError for one that is not known."""
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
    names, row = head_names(described), checkpoint_family(described).tensors
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
    words, path = manifest.words, described.folder / WordLayers.file
    assert words is not None
    if manifest.is_checkpoint:
        stored = open_weights(described)
        path, tensors = stored.path, take_words(described, stored)
    else:
        stored, places = open_file(path), dict(zip(TENSORS, TENSORS, strict=True))
        _check_shapes(stored, places, words.size, words.inner, manifest.dimension)
        tensors = {name: stored.floats(name) for name in TENSORS}
        check_finite(path, tensors)
    return path, tensors


def open_file(path: Path) -> MappedTensors:
    """Map the tensors of a file."""
    return MappedTensors(path, [path])


def check_finite(path: Path, tensors: dict[str, Floats]) -> None:
    """Raise BundleError for a weight that is not finite."""
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise BundleError(f"{path}: {name} has weights that are not finite")
