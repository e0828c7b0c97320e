"""Describing an encoder in the files that other tools read.

sentence-transformers, text-embeddings-inference and others know an encoder as a list of modules:
its folder can be loaded by them as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirror_rt.files import write_json
from mirror_rt.manifest import Manifest
from mirror_train.declared import POOLING_FLAGS
from mirror_train.dense import Dense, save_dense
from mirror_train.head import Head

__all__ = ["write_modules"]

# The names of the modules before version 5, which every version resolves.
_LIBRARY = "sentence_transformers.models."


def write_modules(
    folder: Path, head: Head, manifest: Manifest, *, hidden_size: int, similarity: str = "cosine"
) -> None:
    """Describe an encoder as sentence-transformers does.

    Its `mean-with-padding` has no name there, and is declared in mirror.json alone.

    Args:
        folder: where the transformer's own files are or will be.
        head: what comes after the transformer.
        manifest: the limit of a text and the prompts.
        hidden_size: length of a token vector.
        similarity: what the vectors are compared by.

    Raises:
        OSError: the disk is full.
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
    modules = [_module(0, "Transformer", ""), _module(1, "Pooling")]
    _write_pooling(_subfolder(folder, modules[-1]), head, hidden_size)
    for layer in _layers(head, hidden_size):
        modules.append(_module(len(modules), type(layer).__name__))
        if isinstance(layer, Dense):
            save_dense(layer, _subfolder(folder, modules[-1]))
    if head.normalize:
        modules.append(_module(len(modules), "Normalize"))
    write_json(folder / "modules.json", modules)


def _module(index: int, name: str, path: str | None = None) -> dict[str, Any]:
    path = f"{index}_{name}" if path is None else path
    return {"idx": index, "name": str(index), "path": path, "type": _LIBRARY + name}


def _subfolder(folder: Path, module: dict[str, Any]) -> Path:
    path = folder / str(module["path"])
    path.mkdir()
    return path


def _layers(head: Head, hidden_size: int) -> list[Any]:
    """The layers after the pooling; a cut becomes one, because no module cuts and normalises."""
    layers = list(head.layers)
    if head.truncate_dim is not None:
        full = Head(head.poolings, head.layers).dimension(hidden_size)
        layers.append(Dense.selecting(full, head.truncate_dim))
    return layers


def _write_pooling(folder: Path, head: Head, hidden_size: int) -> None:
    """In the older layout, which text-embeddings-inference reads; it knows one order of several."""
    flags = {key: mode in head.poolings for key, mode in POOLING_FLAGS.items()}
    config: dict[str, Any] = {"word_embedding_dimension": hidden_size, **flags}
    ordered = [mode for mode in POOLING_FLAGS.values() if mode in head.poolings]
    if ordered != list(head.poolings):
        config["pooling_mode"] = list(head.poolings)
    write_json(folder / "config.json", config | {"include_prompt": True})
