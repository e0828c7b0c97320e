"""Derive the manifest of plain ONNX files from the declarations in the files beside the graph."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Literal

from mirror_rt.bundle.declarations import token_of, whole
from mirror_rt.bundle.dense_files import declared_layers
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.families import WIDTHS, positions
from mirror_rt.bundle.graph_header import read_header
from mirror_rt.bundle.json_document import naming
from mirror_rt.bundle.manifest import Layout, Manifest, PoolingMode, Variant
from mirror_rt.bundle.model_kinds import Format
from mirror_rt.errors import BundleError, ConfigError, Setting

PoolingChoice = Literal[
    "auto", "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"
]
# Outputs of a graph: vectors of tokens, and of texts as all modules give them.
TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings")
TEXT_OUTPUT = "sentence_embedding"
# The output of the graph of a cross-encoder.
LOGITS = "logits"


def describe_plain(
    described: ModelDescription, variants: dict[str, Variant], pooling: PoolingChoice
) -> Manifest:
    """Return the manifest of ONNX files, by the declarations in the files beside them."""
    folder = described.folder
    if described.tokenizer.content is None:
        raise BundleError(f"{folder} has ONNX files, but no {Layout.tokenizer} beside them")
    sizes = read_header(folder / next(iter(variants.values())).file).outputs.get(TEXT_OUTPUT)
    # modules.json says how vectors of tokens become one
    own = None if described.modules or sizes is None or len(sizes) != 2 else sizes[1]
    return of_declared(described, variants, pooling, "ONNX files", own=own)


def of_declared(
    described: ModelDescription,
    variants: dict[str, Variant],
    pooling: PoolingChoice,
    kind: Format,
    *,
    own: int | None = None,
) -> Manifest:
    """Return the manifest of an encoder of texts, by the declarations in its folder.

    `own` is the length of the text vectors that a graph gives itself; None if it gives none.
    """
    described.check_kind("SentenceTransformer")
    output: dict[str, Any] = {} if own is None else {"graph": {"output": TEXT_OUTPUT, "width": own}}
    poolings = _chosen(described, pooling, own is not None)
    return derived_manifest(
        described,
        dimension=declared_layers(described, own or width(described) * len(poolings)).dimension,
        pooling="+".join(poolings),
        normalize=own is None and (not described.names or described.names[-1] == "Normalize"),
        variants={name: asdict(variant) | output for name, variant in variants.items()},
        format=kind,
    )


def derived_manifest(described: ModelDescription, **values: Any) -> Manifest:
    """Make the manifest of files of others, of the values that their kind decides, and the rest."""
    rest: dict[str, Any] = {
        "base_model": {"name": described.folder.resolve().name},
        "prompts": dict(described.prompts),
        "default_prompt_name": described.default_prompt_name,
    }
    if not described.is_static:  # a transformer has a limit, and special tokens
        rest |= {"max_length": _max_length(described), "pad_id": _pad_id(described),
                 "mask_token": described.mask_token}  # fmt: skip
    with naming(described.folder):
        return Manifest.of_values(rest | values)


def _chosen(
    described: ModelDescription, pooling: PoolingChoice, own: bool
) -> tuple[PoolingMode, ...]:
    """Return the poolings, joined in this order: those declared, or the one that was chosen."""
    folder, declared = described.folder, described.checked_poolings()
    if own and pooling != "auto":
        raise ConfigError(
            Setting("pooling", pooling),
            f": the graph of {folder} gives the vector of a text itself ({TEXT_OUTPUT}): leave "
            "the option out",
        )
    if own:
        return ("mean",)  # of no meaning here, and the pooling of nearly all such graphs
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


def width(described: ModelDescription) -> int:
    """Return the length of a token vector."""
    found = (whole(described.config.get(name)) for name in WIDTHS)
    return _known(described, "the length of a token vector", found, *WIDTHS)


def _max_length(described: ModelDescription) -> int:
    own = described.declared_length
    known = [limit for limit in (own, positions(described.config, own)) if limit and limit > 0]
    if not known:
        raise BundleError(f"{described.folder} does not declare how many tokens a text may have")
    return min(known)


def _pad_id(described: ModelDescription) -> int:
    content = described.tokenizer.content
    try:
        values = {} if content is None else json.loads(content)
    except (ValueError, RecursionError) as error:
        path = described.transformer / Layout.tokenizer
        raise BundleError(f"{path} is not valid JSON: {error}") from error
    padding = values.get("padding") if isinstance(values, dict) else None
    given = padding.get("pad_id") if isinstance(padding, dict) else None
    found = [whole(given), whole(described.config.get("pad_token_id"))]
    token = token_of(described.tokenizer.values.get("pad_token"))  # all that Qwen3's files say
    added = values.get("added_tokens") if isinstance(values, dict) else None
    for one in added if isinstance(added, list) else ():
        if token is not None and isinstance(one, dict) and one.get("content") == token:
            found.append(whole(one.get("id")))
    return _known(described, "the token to pad with", found, "pad_token_id")


def _known(described: ModelDescription, what: str, found: Any, *names: str) -> int:
    """Return the first value that is known."""
    for value in found:
        if value is not None:
            return int(value)
    raise BundleError(
        f"{described.folder} does not declare {what} (config.json: {' or '.join(names)})"
    )
