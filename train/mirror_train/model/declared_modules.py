"""Make the head of an encoder as its folder declares it, in mirror.json or modules.json."""

from __future__ import annotations

from typing import cast, get_args

from torch import nn

from mirror_rt.bundle.declarations import Module
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ModelError
from mirror_train.model.dense import load_dense
from mirror_train.model.glow import load_flow
from mirror_train.model.model_checks import as_model_error, unsupported
from mirror_train.model.pooling_head import Head, Normalize

FLOW_MODULE = "mirror_train.glow.Flow"  # a name in files on disk, which must not move with the code
_SUPPORTED = ("Transformer", "Pooling", "Dense", "Normalize", FLOW_MODULE)


def declared_pooling(description: ModelDescription) -> Pooling | None:
    """Return the pooling that a folder declares; None where it declares none.

    A pooling that cannot be tuned and modules behind it are refused with a ModelError.
    """
    head, folder = declared_head(description), description.folder
    if head is None:
        return None
    if head.pooling not in get_args(Pooling) or len(head.layers):
        found = head.pooling + " and further modules" * bool(len(head.layers))
        raise ModelError(
            f"{folder} declares the pooling {found}, which cannot be tuned: pass --pooling cls or "
            "--pooling mean"
        )
    return cast(Pooling, head.pooling)


def declared_head(description: ModelDescription) -> Head | None:
    """Return the head that a folder declares; None where it declares none."""
    folder, modules = description.folder, description.modules
    if description.pad_to is not None:  # which modules.json cannot say
        return Head(["mean-with-padding"])
    if unknown := [name for name in description.names if name not in _SUPPORTED]:
        raise unsupported(folder, unknown[0])
    if description.manifest is not None and not modules:
        raise ModelError(f"{folder} is a cross-encoder, which has no vectors of texts")
    if len(modules) < 2:
        return None
    with as_model_error():
        poolings, behind = description.checked_poolings(), description.layers
    layers = [_layer(one) for one in behind]
    normalize = bool(layers) and isinstance(layers[-1], Normalize)
    return Head(poolings, layers[:-1] if normalize else layers, normalize=normalize)


def _layer(module: Module) -> nn.Module:
    if module.name == FLOW_MODULE:
        return load_flow(module.declared)
    return Normalize() if module.name == "Normalize" else load_dense(module.declared)
