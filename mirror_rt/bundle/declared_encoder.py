"""Read what the JSON files beside plain ONNX files declare: pooling, limits, prompts.

sentence-transformers describes the modules of an encoder, transformers the model and its tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirror_rt.bundle.declared_modules import (
    MODULES,
    read_modules,
    read_object,
    read_poolings,
    read_settings,
    read_text_options,
)
from mirror_rt.bundle.manifest import Layout
from mirror_rt.errors import BundleError

# The names that families of models give to the length of a token vector.
_WIDTHS = ("hidden_size", "dim", "d_model")
# These families number positions from pad_token_id + 1 on, so they take fewer tokens.
_SHIFTED = ("roberta", "xlm-roberta", "camembert", "mpnet")
_NO_LIMIT = 1_000_000  # transformers writes larger numbers where a tokenizer has no limit


@dataclass(frozen=True, slots=True)
class DeclaredEncoder:
    """What is declared of an encoder.

    Attributes:
        poolings: how token vectors become one, joined in this order; empty if nothing says so.
        normalize: whether vectors get unit length; True if no modules are declared.
        hidden_size: length of a token vector.
        max_length: most tokens of a text, special tokens included.
        pad_id: token id to pad with.
        mask_token: the tokenizer's mask token; None if it has none.
        prompts: name -> text to put before a text.
        default_prompt_name: name of the prompt used where the caller names none.
    """

    poolings: tuple[str, ...]
    normalize: bool
    hidden_size: int
    max_length: int
    pad_id: int
    mask_token: str | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None


def read_declared(folder: Path) -> DeclaredEncoder:
    """Read the files of a folder."""
    if not (folder / Layout.tokenizer).is_file():
        raise BundleError(f"{folder} has ONNX files, but no {Layout.tokenizer} beside them")
    config = read_object(folder / "config.json")
    settings = read_settings(folder)
    if settings.truncate_dim is not None:
        raise BundleError(f"{folder} declares truncate_dim, which plain ONNX files do not apply")
    poolings, normalize = _pooling(folder)
    tokenizer = read_object(folder / "tokenizer_config.json")
    return DeclaredEncoder(
        poolings,
        normalize,
        hidden_size=_number(folder, "the length of a token vector", config, *_WIDTHS),
        max_length=_max_length(folder, config, tokenizer),
        pad_id=_pad_id(folder, config),
        mask_token=_token(tokenizer.get("mask_token")),
        prompts=settings.prompts,
        default_prompt_name=settings.default_prompt_name,
    )


def _pooling(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return the poolings, and whether a Normalize follows."""
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
