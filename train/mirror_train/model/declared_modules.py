"""Make the head of an encoder from what its folder declares, in mirror.json or modules.json."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

from torch import nn

from mirror_rt.bundle.description import (
    MODULES,
    ModelDescription,
    Module,
    describe_folder,
)
from mirror_rt.bundle.manifest import Layout, Manifest, Pooling
from mirror_rt.errors import BundleError, ModelError
from mirror_train.model.dense import load_dense
from mirror_train.model.glow import load_flow
from mirror_train.model.pooling_head import POOLING_MODES, Head, Normalize

FLOW_MODULE = "mirror_train.glow.Flow"  # a name in files on disk, which must not move with the code
_SUPPORTED = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout", FLOW_MODULE)


def described(folder: Path, *, trust_remote_code: bool = False) -> ModelDescription:
    """Describe a model's folder; ModelError for what it declares and is refused."""
    with as_model_error():
        found = describe_folder(folder, allowed=("auto_map",) if trust_remote_code else ())
    bare = found.modules and not (folder / "config.json").is_file()
    if bare and found.modules[0].name != "Transformer":
        raise _unsupported(folder, found.modules[0].name)
    return found


def is_classifier(description: ModelDescription) -> bool:
    """Return whether a folder is that of a sequence classification, not of an encoder.

    A folder whose modules.json has a pooling is that of an encoder, whatever its architecture: the
    weights of a head are left over there.
    """
    names = description.config.get("architectures") or [""]
    of_pairs = str(names[0]).endswith("ForSequenceClassification")
    return of_pairs and len(description.modules) < 2


def declared_pad_to(folder: Path) -> int | None:
    """Return the tokens to pad every text to by mirror.json (`mean-with-padding`), else None."""
    return _read_manifest(folder).pad_to if (folder / Layout.manifest).is_file() else None


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
    """Return the head that mirror.json or modules.json declares; None where there is neither."""
    folder, modules = description.folder, description.modules
    if (folder / Layout.manifest).is_file():
        pooling = _read_manifest(folder).pooling
        if not modules and pooling != "mean-with-padding":
            raise ModelError(f"{folder} is a cross-encoder, which has no vectors of texts")
        if pooling not in POOLING_MODES:
            raise ModelError(f"{folder / Layout.manifest}: the pooling {pooling!r} is unknown")
        return Head([pooling], map(_layer, modules[2:-1]))  # without the final Normalize
    names = [one.name for one in modules]
    if unknown := [name for name in names if name not in _SUPPORTED]:
        raise _unsupported(folder, unknown[0])
    if len(modules) < 2:
        return None
    if names[:2] != ["Transformer", "Pooling"] or names.count("Pooling") > 1:
        raise ModelError(
            f"{folder / MODULES}: expected a Transformer and a Pooling, got {', '.join(names)}"
        )
    # A Dropout has no effect outside training.
    layers = [_layer(one) for one in modules[2:] if one.name != "Dropout"]
    normalize = bool(layers) and isinstance(layers[-1], Normalize)
    with as_model_error():
        poolings = description.checked_poolings()
    return Head(poolings, layers[:-1] if normalize else layers, normalize=normalize)


def _unsupported(folder: Path, name: str) -> ModelError:
    return ModelError(f"{folder}: the module {name} of {MODULES} is not supported")


def _layer(module: Module) -> nn.Module:
    if module.name == FLOW_MODULE:
        return load_flow(module.folder)
    return Normalize() if module.name == "Normalize" else load_dense(module.folder)


def _read_manifest(folder: Path) -> Manifest:
    with as_model_error():
        return Manifest.read(folder, "mirror_rt encoder")


@contextlib.contextmanager
def as_model_error() -> Iterator[None]:
    """Raise a BundleError about what is declared as a ModelError: the folder is no bundle."""
    try:
        yield
    except BundleError as error:
        raise ModelError(str(error)) from error
