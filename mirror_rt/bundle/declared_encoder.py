"""Read what the JSON files beside plain ONNX files declare: pooling, limits, prompts.

sentence-transformers describes the modules of an encoder, transformers the model and its tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from mirror_rt.bundle.declared_modules import (
    MODULES,
    read_modules,
    read_object,
    read_poolings,
    read_settings,
    read_text_options,
)
from mirror_rt.bundle.json_document import naming
from mirror_rt.bundle.manifest import Layout, Manifest, PoolingMode, Variant
from mirror_rt.errors import BundleError, ConfigError, Setting

PoolingChoice = Literal[
    "auto", "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"
]

# The names that families of models give to the length of a token vector.
_WIDTHS = ("hidden_size", "dim", "d_model")
# These families number positions from pad_token_id + 1 on, so they take fewer tokens.
_SHIFTED = ("roberta", "xlm-roberta", "camembert", "mpnet")
_NO_LIMIT = 1_000_000  # transformers writes larger numbers where a tokenizer has no limit


def describe(folder: Path, variants: dict[str, Variant], pooling: PoolingChoice) -> Manifest:
    """Return the manifest of ONNX files, by what the files beside them declare."""
    if not (folder / Layout.tokenizer).is_file():
        raise BundleError(f"{folder} has ONNX files, but no {Layout.tokenizer} beside them")
    config = read_object(folder / "config.json")
    settings = read_settings(folder)
    if settings.truncate_dim is not None:
        raise BundleError(f"{folder} declares truncate_dim, which plain ONNX files do not apply")
    declared, normalize = _pooling(folder)
    tokenizer = read_object(folder / "tokenizer_config.json")
    width = _number(folder, "the length of a token vector", config, *_WIDTHS)
    max_length, pad_id = _max_length(folder, config, tokenizer), _pad_id(folder, config)
    poolings = _chosen(folder, declared, pooling)
    values = {
        "dimension": width * len(poolings),
        "max_length": max_length,
        "pad_id": pad_id,
        "pooling": "+".join(poolings),
        "mask_token": _token(tokenizer.get("mask_token")),
        "base_model": {"name": folder.resolve().name},
        "normalize": normalize,
        "prompts": settings.prompts,
        "default_prompt_name": settings.default_prompt_name,
        "variants": {name: asdict(variant) for name, variant in variants.items()},
        "format": "ONNX files",
    }
    with naming(folder):
        return Manifest.of_values(values)


def _chosen(
    folder: Path, declared: tuple[PoolingMode, ...], pooling: PoolingChoice
) -> tuple[PoolingMode, ...]:
    """Return the poolings, joined in this order: those declared, or the one that was chosen."""
    if pooling == "auto" and not declared:
        raise BundleError(
            f"{folder} declares no pooling (it has no modules.json): pass the one that its authors "
            "name, ",
            Setting("pooling", "mean"),
            " for example",
        )
    if pooling == "auto":
        return declared
    if declared and declared != (pooling,):
        raise ConfigError(
            Setting("pooling", pooling),
            f": {folder} declares {'+'.join(declared)}: leave the option out",
        )
    return (pooling,)


def _pooling(folder: Path) -> tuple[tuple[PoolingMode, ...], bool]:
    """Return the declared poolings, none where no modules are, and whether to normalise."""
    modules = [one for one in read_modules(folder) if one.name != "Dropout"]  # no effect here
    if not modules:
        return (), True
    names = [one.name.rpartition(".")[2] for one in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BundleError(
            f"{folder / MODULES} declares {', '.join(names)}: of plain ONNX files, a Transformer, "
            "a Pooling and a Normalize can be run"
        )
    return read_poolings(modules[1].folder), len(modules) == 3


def _max_length(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """Return the declared limit, of sentence-transformers before that of the tokenizer."""
    _, texts = read_text_options(folder)
    if texts.get("do_lower_case") and not _lowercases(folder):
        raise BundleError(f"{folder} declares do_lower_case, which its tokenizer does not do")
    limits = _counts(texts.get("max_seq_length"), tokenizer.get("model_max_length"))[:1]
    shift = _pad_id(folder, config) + 1 if config.get("model_type") in _SHIFTED else 0
    limits += [count - shift for count in _counts(config.get("max_position_embeddings"))]
    if not limits:
        raise BundleError(f"{folder} does not declare how many tokens a text may have")
    return min(limits)


def _lowercases(folder: Path) -> bool:
    said = json.dumps(_tokenizer(folder).get("normalizer"))
    return '"lowercase": true' in said or '"type": "Lowercase"' in said


def _pad_id(folder: Path, config: dict[str, Any]) -> int:
    padding = _tokenizer(folder).get("padding")
    known = config | (padding if isinstance(padding, dict) else {})
    return _number(folder, "the token to pad with", known, "pad_id", "pad_token_id")


def _tokenizer(folder: Path) -> dict[str, Any]:
    """Parse tokenizer.json, which is larger than other documents may be."""
    path = folder / Layout.tokenizer
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}") from error
    return values if isinstance(values, dict) else {}


def _number(folder: Path, what: str, config: dict[str, Any], *names: str) -> int:
    """Return the first of several values that is an integer from 0 on."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise BundleError(f"{folder} does not declare {what} (config.json: {' or '.join(names)})")


def _counts(*values: Any) -> list[int]:
    """Return those of `values` that are numbers of tokens."""
    found = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return [value for value in found if 0 < value < _NO_LIMIT]


def _token(value: Any) -> str | None:
    """Return a token that is given as a string, or as an object with its content."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None
