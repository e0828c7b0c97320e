"""Read what a model folder declares besides its transformer, in mirror.json or modules.json.

sentence-transformers describes an encoder as a list of modules (modules.json), each with a
configuration and perhaps weights of its own, in the layout of its version 5 or an older one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from torch import nn

from mirror_rt.bundle.manifest import Layout, Manifest, Pooling, PoolingMode
from mirror_rt.errors import BundleError, ModelError
from mirror_rt.schema import InnerFolder, build
from mirror_train.model.dense import load_dense
from mirror_train.model.glow import load_flow
from mirror_train.model.json_file import read_json, read_object
from mirror_train.model.pooling import POOLING_MODES
from mirror_train.model.pooling_head import Head, Normalize

logger = logging.getLogger("mirror_train")

_MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
_TRANSFORMER_SETTINGS = "sentence_bert_config.json"
_LIBRARY = "sentence_transformers."
FLOW_MODULE = "mirror_train.glow.Flow"  # a name in files on disk, which must not move with the code
# Keys of the older layout, in the order in which that layout joins several poolings.
POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Declared:
    """The settings of the whole encoder that a sentence-transformers folder declares.

    Attributes:
        prompts: maps a prompt's name to the text to put before an input text.
        default_prompt_name: name of the prompt used where the caller names none; None for none.
        similarity: cosine, dot, euclidean or manhattan.
        truncate_dim: number of dimensions to keep; None for all.
    """

    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The tokenisation settings that a sentence-transformers folder declares.

    `max_length` is None for as many tokens as the model has positions; with `lowercase`, texts are
    lower-cased before the tokenizer's own normalisation.
    """

    max_length: int | None = None
    lowercase: bool = False


def declared(folder: Path) -> Declared:
    """Read the settings of a sentence-transformers folder; return the defaults where it has none.

    Raises:
        ModelError: the settings cannot be read, or are those of another kind of model.
    """
    path = folder / _SETTINGS
    values = read_object(path) if path.is_file() else {}
    if (kind := values.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise ModelError(f"{folder} is a {kind} of sentence-transformers: it gives no text vectors")
    prompts = values.get("prompts") or {}
    name = values.get("default_prompt_name")
    cut = values.get("truncate_dim")
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
        raise ModelError(f"{path}: prompts is {prompts!r}, expected names and texts")
    if name is not None and name not in prompts:
        raise ModelError(f"{path}: default_prompt_name {name!r} is not one of the prompts")
    if cut is not None and (not isinstance(cut, int) or cut < 1):
        raise ModelError(f"{path}: truncate_dim is {cut!r}, expected a number of dimensions")
    return Declared(
        prompts={key: prompt or "" for key, prompt in prompts.items()},
        default_prompt_name=name,
        similarity=str(values.get("similarity_fn_name") or "cosine"),
        truncate_dim=cut,
    )


def declared_text_options(folder: Path) -> TextOptions:
    """Read how texts are tokenised; `folder` is the folder of the transformer itself.

    Raises:
        ModelError: the settings cannot be read.
    """
    path = folder / _TRANSFORMER_SETTINGS
    if not path.is_file():  # early versions had a file name for each family
        path = next(iter(sorted(folder.glob("sentence_*_config.json"))), path)
    values = read_object(path) if path.is_file() else {}
    for key, value in values.items():
        if value and key.endswith(("_args", "_kwargs")):
            logger.warning("%s: %s is not applied: %s", path, key, value)
    limit = values.get("max_seq_length")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ModelError(f"{path}: max_seq_length is {limit!r}, expected a number of tokens")
    return TextOptions(limit, bool(values.get("do_lower_case")))


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the transformer: `folder` itself, or a subfolder in an old layout.

    Raises:
        ModelError: modules.json cannot be read, or names another module first.
    """
    if (folder / "config.json").is_file() or not (folder / _MODULES).is_file():
        return folder
    name, path = _modules(folder)[0]
    if name != "Transformer":
        raise ModelError(f"{folder}: the module {name} of {_MODULES} is not supported")
    return folder / path


def declared_pad_to(folder: Path) -> int | None:
    """Return the tokens to pad every text to by mirror.json (`mean-with-padding`), else None."""
    return _read_manifest(folder).pad_to if (folder / Layout.manifest).is_file() else None


def declared_pooling(folder: Path) -> Pooling | None:
    """Return the pooling that `folder` declares; None where it declares none.

    Raises:
        ModelError: the folder declares a pooling that cannot be tuned, further modules, or modules
            that are not supported.
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
    """Return the head that mirror.json or modules.json declares; None where there is neither.

    Raises:
        ModelError: a declared module is not supported or cannot be read.
    """
    if (folder / Layout.manifest).is_file():
        pooling = _read_manifest(folder).pooling
        if pooling not in POOLING_MODES:
            raise ModelError(f"{folder / Layout.manifest}: the pooling {pooling!r} is unknown")
        return Head([pooling], _tuned_layers(folder))
    if not (folder / _MODULES).is_file():
        return None
    (first, _), *modules = _modules(folder)
    names = [name for name, _ in modules]
    if unknown := [
        name
        for name in (first, *names)
        if name not in ("Transformer", "Pooling", "Dense", "Normalize", "Dropout", FLOW_MODULE)
    ]:
        raise ModelError(f"{folder}: the module {unknown[0]} of {_MODULES} is not supported")
    if not modules:
        return None
    if (first, names[0]) != ("Transformer", "Pooling") or names.count("Pooling") > 1:
        chain = ", ".join((first, *names))
        raise ModelError(f"{folder / _MODULES}: expected a Transformer and a Pooling, got {chain}")
    layers = [
        _layer(name, folder / path)
        for name, path in modules[1:]
        if name != "Dropout"  # has no effect outside training
    ]
    normalize = bool(layers) and isinstance(layers[-1], Normalize)
    poolings = _poolings(folder / modules[0][1] / "config.json")
    return Head(poolings, layers[:-1] if normalize else layers, normalize=normalize)


def _tuned_layers(folder: Path) -> list[nn.Module]:
    """Return the layers after the pooling, without the final Normalize, of a tuned folder."""
    modules = _modules(folder)[2:-1] if (folder / _MODULES).is_file() else []
    return [_layer(name, folder / path) for name, path in modules]


def _layer(name: str, folder: Path) -> nn.Module:
    if name == FLOW_MODULE:
        return load_flow(folder)
    return Normalize() if name == "Normalize" else load_dense(folder)


@dataclass(frozen=True, slots=True)
class _Module:
    """An entry of modules.json; the first module of a folder is often the folder itself."""

    type: str
    path: InnerFolder


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return the name and the subfolder of each module.

    A module that is not one of sentence-transformers keeps its full name.
    """
    path = folder / _MODULES
    values = read_json(path)
    try:
        modules: list[_Module] = build(list[_Module], values)
    except ValueError as error:
        raise ModelError(f"{path} is not a list of modules: {error}") from error
    if not modules:
        raise ModelError(f"{path} is not a list of modules: it is empty")
    kinds = [module.type for module in modules]
    names = [kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind for kind in kinds]
    return [(name, module.path) for name, module in zip(names, modules, strict=True)]


def _poolings(path: Path) -> list[PoolingMode]:
    config = read_object(path)
    given = config.get("pooling_mode")  # since version 5
    if given is None:
        flags = {
            key for key, value in config.items() if key.startswith("pooling_") and value is True
        }
        found: list[str] = [mode for key, mode in POOLING_FLAGS.items() if key in flags]
        found += sorted(flags - set(POOLING_FLAGS))
    else:
        found = [given] if isinstance(given, str) else list(given)
    if not found or not set(found) <= set(POOLING_MODES) - {"mean-with-padding"}:
        raise ModelError(
            f"{path} declares the pooling {'+'.join(map(str, found)) or 'none'}, which is not "
            "supported: pass --pooling cls or --pooling mean"
        )
    if config.get("include_prompt") is False:
        raise ModelError(
            f"{path} leaves the prompt out of the pooling (include_prompt), which is not "
            "supported: pass --pooling cls or --pooling mean to pool over the prompt too"
        )
    return cast(list[PoolingMode], found)


def _read_manifest(folder: Path) -> Manifest:
    try:
        return Manifest.read(folder, "mirror_rt encoder")
    except BundleError as error:
        raise ModelError(str(error)) from error
