"""Describe an encoder in the files that other tools read.

sentence-transformers, text-embeddings-inference and others read an encoder as a list of modules.
These files let them load the folder of an encoder directly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mirror_rt.bundle import declarations
from mirror_rt.bundle.declared_keys import POOLING_FLAGS
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.io.atomic import write_json
from mirror_train.model.declared_modules import FLOW_MODULE
from mirror_train.model.dense import Dense, save_dense
from mirror_train.model.glow import Flow, save_flow
from mirror_train.model.pooling_head import Head, Normalize

# Keys that transformers 5 adds to tokenizer_config.json: where the tokenizer was loaded from, and
# the truncation and padding that tokenizer.json had, which other tools would apply.
_LOADING = ("backend", "is_local", "local_files_only", "max_length", "pad_to_multiple_of",
            "stride", "truncation_strategy")  # fmt: skip


def save_tokenizer(tokenizer: Any, folder: Path, *, max_length: int) -> None:
    """Write a transformers tokenizer so that earlier versions and other tools can load it too.

    The tokenizer must have neither truncation nor padding; its model_max_length is changed to
    `max_length` tokens.
    """
    tokenizer.model_max_length = max_length
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # tokenizers' error for a full disk
        raise OSError(f"cannot write the tokenizer: {error}") from error
    path = folder / "tokenizer_config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in saved.items() if key not in _LOADING}
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"  # its name before version 5
        if (spaced := _add_prefix_space(tokenizer.backend_tokenizer)) is not None:
            config["add_prefix_space"] = spaced  # older versions take False otherwise
    write_json(path, config)
    write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)


def write_modules(
    folder: Path, head: Head, manifest: Manifest, *, hidden_size: int, similarity: str = "cosine"
) -> None:
    """Write the files by which sentence-transformers describes an encoder.

    It cannot describe `mean-with-padding`, which only mirror.json declares. It does not know
    `mean-without-special` or a `Flow` either; these are written nevertheless, so that it refuses to
    load the folder instead of computing other vectors. The manifest gives the maximum length of a
    text and the prompts; `similarity` names the function that vectors are compared with.
    """
    limit = {"max_seq_length": manifest.max_length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", limit)
    if "mean-with-padding" in head.poolings:
        return
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": manifest.prompts,
        "default_prompt_name": manifest.default_prompt_name,
        "similarity_fn_name": similarity,
    }
    write_json(folder / "config_sentence_transformers.json", settings)
    places = {"": "Transformer", "1_Pooling": "Pooling"}
    _write_pooling(folder / "1_Pooling", head, hidden_size)
    for layer in [*_layers(head, hidden_size), *[Normalize()] * head.normalize]:
        kind = type(layer).__name__
        place = f"{len(places)}_{kind}"
        places[place] = FLOW_MODULE if isinstance(layer, Flow) else kind
        if isinstance(layer, Dense):
            save_dense(layer, folder / place)
        elif isinstance(layer, Flow):
            save_flow(layer, folder / place)
    declarations.write_modules(folder, places)


def _add_prefix_space(tokenizer: Tokenizer) -> bool | None:
    """Return whether texts get a leading space; None for a tokenizer without such a setting."""
    if tokenizer.pre_tokenizer is None:
        return None
    spaced: bool | None = json.loads(tokenizer.pre_tokenizer.__getstate__()).get("add_prefix_space")
    return spaced


def _layers(head: Head, hidden_size: int) -> list[Any]:
    """Return the layers after the pooling, with `truncate_dim` as a Dense layer.

    sentence-transformers has no module that truncates a vector before a normalisation.
    """
    layers = list(head.layers)
    if head.truncate_dim is not None:
        full = Head(head.poolings, head.layers).dimension(hidden_size)
        layers.append(Dense.selecting(full, head.truncate_dim))
    return layers


def _write_pooling(folder: Path, head: Head, hidden_size: int) -> None:
    """Write the pooling in the older layout, which text-embeddings-inference reads.

    That layout joins several poolings in a fixed order, so another order needs the newer key too.
    """
    flags = {key: mode in head.poolings for key, mode in POOLING_FLAGS.items()}
    config: dict[str, Any] = {"word_embedding_dimension": hidden_size, **flags}
    ordered = [mode for mode in POOLING_FLAGS.values() if mode in head.poolings]
    if ordered != list(head.poolings):
        config["pooling_mode"] = list(head.poolings)
    write_json(folder / "config.json", config | {"include_prompt": True})
