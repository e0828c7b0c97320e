"""Pooling of token vectors, and what a folder declares about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from mirror_rt.errors import BundleError, ModelError
from mirror_rt.manifest import Layout, Manifest, Pooling

__all__ = ["declared_pad_to", "declared_pooling", "pool", "write_sentence_transformers_modules"]

_MODULES_FILE = "modules.json"
_POOLING_FILE = "1_Pooling/config.json"
_MODE_KEYS: dict[str, Pooling] = {"cls": "cls", "mean": "mean"}


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Token vectors [B, L, D] and mask [B, L] to text vectors [B, D].

    `cls` takes the first token, `mean` averages the real tokens, and `mean-with-padding` all of
    them, padding too (EMNLP 2021, caption of Table 3).
    """
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "mean-with-padding":
        return hidden.mean(dim=1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def declared_pooling(folder: Path) -> Pooling | None:
    """Pooling that mirror.json or a sentence-transformers folder declares, None for neither.

    Raises:
        ModelError: it declares one, or a further module, that is not supported here.
    """
    if (folder / Layout.manifest).is_file():
        return _read_manifest(folder).pooling
    if not (folder / _MODULES_FILE).is_file():
        return None
    modules = _read_json(folder / _MODULES_FILE)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules
    ):
        raise ModelError(f"{folder / _MODULES_FILE} is not a list of modules")
    types = [str(module["type"]).rpartition(".")[2] for module in modules]
    if extra := [name for name in types if name not in ("Transformer", "Pooling", "Normalize")]:
        raise ModelError(f"{folder}: the module {extra[0]} of modules.json is not supported")
    paths = [module["path"] for module in modules if str(module["type"]).endswith("Pooling")]
    if not paths:
        return None
    return _pooling_mode(folder / paths[0] / "config.json")


def declared_pad_to(folder: Path) -> int | None:
    """Tokens that mirror.json says to pad every text to (`mean-with-padding`), else None."""
    return _read_manifest(folder).pad_to if (folder / Layout.manifest).is_file() else None


def write_sentence_transformers_modules(folder: Path, pooling: Pooling, dimension: int) -> None:
    """Declare `pooling` as sentence-transformers does, so that it loads the folder too.

    `mean-with-padding` is unknown there, and is declared in mirror.json alone.
    """
    if pooling == "mean-with-padding":
        return
    module = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": module + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": module + "Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": module + "Normalize"},
    ]
    config = {
        "word_embedding_dimension": dimension,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    for name, value in ((_MODULES_FILE, modules), (_POOLING_FILE, config)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _read_manifest(folder: Path) -> Manifest:
    try:
        return Manifest.read(folder, "mirror_rt encoder")
    except BundleError as error:
        raise ModelError(str(error)) from error


def _pooling_mode(path: Path) -> Pooling:
    config = _read_json(path)
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a pooling configuration")
    on = [
        key.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    if isinstance(config.get("pooling_mode"), str):  # the newer way to write it
        on = [config["pooling_mode"]]
    if len(on) != 1 or on[0] not in _MODE_KEYS:
        raise ModelError(
            f"{path} declares the pooling {'+'.join(on) or 'none'}, which is not supported: "
            "pass --pooling cls or --pooling mean"
        )
    return _MODE_KEYS[on[0]]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
