"""Read the layers of an encoder behind its pooling: Dense modules, and normalisations between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.declarations import MODULES, Module
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.json_document import naming
from mirror_rt.bundle.score_layers import LayerActivation, ScoreLayer
from mirror_rt.errors import BundleError
from mirror_rt.io.tensors import MappedTensors
from mirror_rt.schema import build

_ACTIVATIONS: dict[str, LayerActivation] = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu",
}  # fmt: skip


class VectorLayers(NamedTuple):
    """The layers behind a pooling.

    Attributes:
        modules: of each layer its description and its module; None for a normalisation.
        dimension: length of the vectors that they give.
    """

    modules: list[tuple[ScoreLayer, Module] | None]
    dimension: int


def declared_layers(described: ModelDescription, size: int) -> VectorLayers:
    """Return the layers that modules.json declares, for pooled vectors of `size` numbers.

    A last normalisation is none of them: both forms of a vector are useful. BundleError names a
    module that is not applied here, or does not fit the one before.
    """
    if (made := described.manifest) is not None and made.has_own_head:
        return VectorLayers([], size)
    layers = list[tuple[ScoreLayer, Module] | None]()
    for module in described.layers if described.modules else ():
        if module.name == "Normalize":
            layers.append(None)
        elif module.name == "Dense":
            layer = dense_layer(module)
            if layer.inputs != size:
                raise _refused(described, f"a Dense of {layer.inputs} features behind {size}")
            layers.append((layer, module))
            size = layer.outputs
        else:
            raise _refused(described, f"{module.name}, which is not applied here")
    if layers and layers[-1] is None:
        layers.pop()
    cut = size if described.truncate_dim is None else described.truncate_dim
    if cut > size:
        raise BundleError(f"{described.folder} declares truncate_dim {cut} of {size} dimensions")
    return VectorLayers(layers, cut)


def read_dense(layer: ScoreLayer, module: Module) -> tuple[npt.NDArray[np.float32], ...]:
    """Return the matrix [outputs, inputs] and the bias of a Dense module."""
    path = module.folder / "model.safetensors"
    stored = MappedTensors(path, [path])
    shapes = {"linear.weight": (layer.outputs, layer.inputs), "linear.bias": (layer.outputs,)}
    if module.declared.values.get("bias") is False:
        del shapes["linear.bias"]
    for name, shape in shapes.items():
        if stored.shape(name) != shape:
            raise BundleError(f"{path}: {name} is {list(stored.shape(name))}, not {list(shape)}")
    weight, *biases = map(stored.floats, shapes)
    if module.declared.values.get("use_residual"):  # which is added to a product alone, as one
        equal = layer.inputs == layer.outputs
        own = np.eye(layer.inputs) if equal else stored.floats("residual.weight")
        if own.shape != weight.shape:
            raise BundleError(f"{path}: residual.weight is {list(own.shape)}")
        weight = (weight + own).astype(np.float32)
    return weight, biases[0] if biases else np.zeros(layer.outputs, np.float32)


def dense_layer(module: Module, vectors: str = "sentence_embedding") -> ScoreLayer:
    """Return the description of a Dense module of `vectors`, which its folder may leave out."""
    path, values = module.declared.path, module.declared.values
    kind = str(values.get("activation_function", "torch.nn.Tanh"))
    names = (values.get(key) or vectors for key in ("module_input_name", "module_output_name"))
    of_tokens = vectors == "token_embeddings" and kind.endswith(".Identity")
    if (
        {*names} != {vectors}
        or (values.get("use_residual") and not of_tokens)
        or not kind.startswith("torch.nn.")
    ):
        raise BundleError(f"{path} declares a Dense that is not applied here")
    if (activation := _ACTIVATIONS.get(kind.rpartition(".")[2])) is None:
        raise BundleError(f"{path}: the activation {kind!r} is none of {', '.join(_ACTIVATIONS)}")
    sizes = {"inputs": values.get("in_features"), "outputs": values.get("out_features")}
    with naming(path):
        layer: ScoreLayer = build(ScoreLayer, sizes | {"activation": activation})
    return layer


def _refused(described: ModelDescription, what: str) -> BundleError:
    return BundleError(f"{described.folder / MODULES} declares {what}")
