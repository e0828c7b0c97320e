"""Describe late-interaction models as PyLate, Stanford's ColBERT and sentence-transformers save.

Their encoders are followed by linear layers that are applied to every token. PyLate declares how
queries and documents become tokens beside its prompts, sentence-transformers in the files of its
modules, and Stanford's ColBERT in artifact.metadata.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.checkpoint_files import native_variants, open_weights, sizes_of, with_history
from mirror_rt.bundle.declarations import METADATA, MODULES, WEIGHTS, token_of, whole
from mirror_rt.bundle.dense_files import dense_layer, read_dense
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.families import positions
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.bundle.plain_manifest import derived_manifest, width
from mirror_rt.bundle.score_layers import ScoreLayer
from mirror_rt.bundle.token_vectors import TokenVectors
from mirror_rt.errors import BundleError
from mirror_rt.tokens.sides import TextSide

Floats = npt.NDArray[np.float32]
_MODULES = re.compile(r"Transformer( Dense)*( MultiVectorMask| Normalize){0,2}")
# Where a folder does not say them, as PyLate and Stanford's ColBERT have them.
_QUERY, _DOCUMENT = 32, 180
_PREFIXES = {True: ("[unused0]", "[unused1]"), False: ("[Q] ", "[D] ")}  # of Stanford's, else
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_PROJECTION = "linear.weight"


def describe_late_interaction(described: ModelDescription) -> Manifest:
    """Return the manifest of a late-interaction model with its weights in safetensors."""
    if not described.gives_tokens:
        raise BundleError(
            f"{described.folder} is no late-interaction model: neither PyLate, nor Stanford's "
            "ColBERT, nor MultiVectorEncoder of sentence-transformers saved it"
        )
    if described.weights is None:
        raise BundleError(f"{described.folder} has no weights in {WEIGHTS}: save them so")
    with sizes_of(described):
        dimension = width(described)
        layers = [layer for layer, _ in projection(described)]
    tokens = token_vectors(described, layers)
    made = derived_manifest(
        described,
        dimension=dimension,
        max_length=max(tokens.query.max_length, tokens.document.max_length),
        pooling="mean",  # of no meaning here
        normalize=described.kind != "MultiVectorEncoder" or "Normalize" in described.names,
        tokens=asdict(tokens),
        variants={name: asdict(one) for name, one in native_variants(described).items()},
        format="safetensors files",
    )
    return with_history(described, made)


def projection(described: ModelDescription) -> Iterator[tuple[ScoreLayer, list[Floats]]]:
    """Yield the layers behind the encoder, with their matrices [outputs, inputs] and biases."""
    if not described.modules:
        matrix = open_weights(described).floats(_PROJECTION)
        if matrix.ndim != 2:
            raise BundleError(f"{described.weights}: {_PROJECTION} is {list(matrix.shape)}")
        outputs, inputs = matrix.shape
        yield ScoreLayer(inputs, outputs), [matrix, np.zeros(outputs, np.float32)]
        return
    names = " ".join(described.names)
    if not _MODULES.fullmatch(names):
        raise BundleError(
            f"{described.folder / MODULES} declares {names}: expected a Transformer, Dense and "
            "perhaps MultiVectorMask and Normalize"
        )
    for module in described.modules:
        if module.name == "Dense":
            layer = dense_layer(module, "token_embeddings")
            yield layer, [*read_dense(layer, module)]


def token_vectors(described: ModelDescription, layers: list[ScoreLayer]) -> TokenVectors:
    """Return how a folder makes vectors of tokens, with the layers behind its encoder."""
    own = described.kind == "MultiVectorEncoder"
    query, document = _of_library(described) if own else _of_pylate(described)
    made = TokenVectors(layers, query, document, described.similarity == "meanmaxsim")
    limit = positions(described.config, max(query.max_length, document.max_length))
    if problem := made.problem(width(described), limit or 0):
        raise BundleError(f"{described.folder} does not go together: {problem}")
    return made


def _of_pylate(described: ModelDescription) -> tuple[TextSide, TextSide]:
    """Return the sides as PyLate reads its folders, and those of Stanford's ColBERT."""
    declared, stanford = described.token_options, not described.modules
    if declared.get("similarity", "cosine") != "cosine":
        raise BundleError(f"{described.folder / METADATA}: similarity is not cosine")
    names = ("query_token_id", "doc_token_id") if stanford else ("query_prefix", "document_prefix")
    query, document = (
        usual if declared.get(name) is None else str(declared[name])
        for name, usual in zip(names, _PREFIXES[stanford], strict=True)
    )
    longest = _length(described, "query_maxlen" if stanford else "query_length", _QUERY)
    words = declared.get("skiplist_words")
    if words is None and declared.get("mask_punctuation", True):
        words = list(string.punctuation)
    attended = declared.get("attend_to_mask_tokens" if stanford else "attend_to_expansion_tokens")
    expands = declared.get("do_query_expansion") is not False
    return (
        TextSide(
            longest,
            query or None,
            least=longest if expands else 0,
            filler=_filler(described, None) if expands else None,
            attended=bool(attended),
        ),
        TextSide(
            _length(described, "doc_maxlen" if stanford else "document_length", _DOCUMENT),
            document or None,
            skipped=_words(described, words),
        ),
    )


def _of_library(described: ModelDescription) -> tuple[TextSide, TextSide]:
    """Return the sides as sentence-transformers' MultiVectorEncoder reads its folders."""
    declared = described.token_options
    limit = positions(described.config, described.declared_length)
    usual = min(filter(None, (described.declared_length, limit)), default=0)
    expansion = declared.get("query_expansion") or {}
    if not isinstance(expansion, Mapping) or expansion.get("strategy", "min") not in (
        "fixed", "min",
    ):  # fmt: skip
        raise BundleError(f"{described.folder}: query_expansion is {expansion!r:.200}")
    least = whole(expansion.get("length", 0)) or 0
    longest = _length(described, "query_length", usual)
    if expansion:
        longest = least if expansion["strategy"] == "fixed" else max(longest, least)
    mask: Mapping[str, Any] = next(
        (one.declared.values for one in described.modules if one.name == "MultiVectorMask"), {}
    )
    if mask.get("keep_only_token_ids"):
        raise BundleError(f"{described.folder}: keep_only_token_ids is not applied here")
    words, tasks = _words(described, mask.get("skiplist_words")), mask.get("skiplist_tasks")
    tasks = ["document"] if tasks is None else tasks
    prompts = [next((one for one in names if one in described.prompts), None)
               for names in (("query",), _DOCUMENT_PROMPTS)]  # fmt: skip
    return (
        TextSide(
            longest,
            prompt=prompts[0],
            least=least,
            filler=_filler(described, expansion.get("token")) if least else None,
            attended=bool(expansion.get("attend")),
            skipped=words if "query" in tasks else [],
        ),
        TextSide(
            _length(described, "document_length", usual),
            prompt=prompts[1],
            skipped=words if "document" in tasks else [],
        ),
    )


def _length(described: ModelDescription, name: str, usual: int) -> int:
    found = described.token_options.get(name)
    found = usual if found is None else whole(found)
    if not found:
        raise BundleError(
            f"{described.folder}: {name} is {described.token_options.get(name)!r:.80}, expected a "
            "number of tokens"
        )
    return int(found)


def _filler(described: ModelDescription, given: object) -> str:
    """Return the token that queries are filled up with: the mask token, else the last of a text."""
    found = given if isinstance(given, str) else described.mask_token
    found = found or token_of(described.tokenizer.values.get("eos_token"))
    if not found:
        raise BundleError(
            f"{described.folder} fills queries up, and its tokenizer_config.json has no mask_token"
        )
    return found


def _words(described: ModelDescription, words: object) -> list[str]:
    words = [] if words is None else words
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise BundleError(f"{described.folder}: skiplist_words is {words!r:.80}, expected strings")
    return words
