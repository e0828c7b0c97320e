"""Make the head of an encoder from what its folder declares, in mirror.json or modules.json."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from torch import nn

from mirror_rt.bundle.declared_modules import (
    MODULES,
    Declared,
    ModelKind,
    Module,
    read_modules,
    read_poolings,
    read_settings,
    read_text_options,
)
from mirror_rt.bundle.manifest import Layout, Manifest, Pooling
from mirror_rt.errors import BundleError, ModelError
from mirror_train.model.dense import load_dense
from mirror_train.model.glow import load_flow
from mirror_train.model.pooling_head import POOLING_MODES, Head, Normalize

logger = logging.getLogger("mirror_train")

FLOW_MODULE = "mirror_train.glow.Flow"  # a name in files on disk, which must not move with the code
_SUPPORTED = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout", FLOW_MODULE)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The tokenisation settings that a sentence-transformers folder declares.

    `max_length` is None for as many tokens as the model has positions; with `lowercase`, texts are
    lower-cased before the tokenizer's own normalisation.
    """

    max_length: int | None = None
    lowercase: bool = False


def declared(folder: Path, kind: ModelKind = "SentenceTransformer") -> Declared:
    """Read the settings of a sentence-transformers folder; the defaults where it has none."""
    with _as_model_error():
        return read_settings(folder, kind)


def declared_text_options(folder: Path) -> TextOptions:
    """Read how texts are tokenised; `folder` is the folder of the transformer itself."""
    with _as_model_error():
        path, values = read_text_options(folder)
    for key, value in values.items():
        if value and key.endswith(("_args", "_kwargs")):
            logger.warning("%s: %s is not applied: %s", path, key, value)
    return TextOptions(values.get("max_seq_length"), bool(values.get("do_lower_case")))


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the transformer: `folder` itself, or a subfolder in an old layout."""
    if (folder / "config.json").is_file() or not (modules := _modules(folder)):
        return folder
    if modules[0].name != "Transformer":
        raise _unsupported(folder, modules[0].name)
    return modules[0].folder


def is_classifier(folder: Path, config: Any) -> bool:
    """Return whether a folder is that of a sequence classification, not of an encoder.

    `config` is transformers' configuration. A folder whose modules.json has a pooling is that of an
    encoder, whatever its architecture: the weights of a head are left over there.
    """
    names = getattr(config, "architectures", None) or [""]
    return str(names[0]).endswith("ForSequenceClassification") and len(_modules(folder)) < 2


def declared_pad_to(folder: Path) -> int | None:
    """Return the tokens to pad every text to by mirror.json (`mean-with-padding`), else None."""
    return _read_manifest(folder).pad_to if (folder / Layout.manifest).is_file() else None


def declared_pooling(folder: Path) -> Pooling | None:
    """Return the pooling that `folder` declares; None where it declares none.

    A pooling that cannot be tuned and modules behind it are refused with a ModelError.
    """
    head = declared_head(folder)
    if head is None:
        return None
    if head.pooling not in get_args(Pooling) or len(head.layers):
        found = head.pooling + " and further modules" * bool(len(head.layers))
        raise ModelError(
            f"{folder} declares the pooling {found}, which cannot be tuned: pass --pooling cls or "
            "--pooling mean"
        )
    return cast(Pooling, head.pooling)


def declared_head(folder: Path) -> Head | None:
    """Return the head that mirror.json or modules.json declares; None where there is neither."""
    modules = _modules(folder)
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
    with _as_model_error():
        poolings = read_poolings(modules[1].folder, set(POOLING_MODES) - {"mean-with-padding"})
    return Head(poolings, layers[:-1] if normalize else layers, normalize=normalize)


def _unsupported(folder: Path, name: str) -> ModelError:
    return ModelError(f"{folder}: the module {name} of {MODULES} is not supported")


def _modules(folder: Path) -> list[Module]:
    with _as_model_error():
        return read_modules(folder)


def _layer(module: Module) -> nn.Module:
    if module.name == FLOW_MODULE:
        return load_flow(module.folder)
    return Normalize() if module.name == "Normalize" else load_dense(module.folder)


def _read_manifest(folder: Path) -> Manifest:
    with _as_model_error():
        return Manifest.read(folder, "mirror_rt encoder")


@contextlib.contextmanager
def _as_model_error() -> Iterator[None]:
    """Raise a BundleError about what is declared as a ModelError: the folder is no bundle."""
    try:
        yield
    except BundleError as error:
        raise ModelError(str(error)) from error
