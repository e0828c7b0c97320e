"""Draw the folder of a model, and texts, as strangers publish them, with settings at random."""

from __future__ import annotations

import json
import random
import shutil
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "albert",
            "deberta-v2", "modernbert")  # fmt: skip
CLASSES = {
    "bert": "BertTokenizer", "electra": "ElectraTokenizerFast", "distilbert": "DistilBertTokenizer",
    "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizerFast",
    "xlm-roberta": "XLMRobertaTokenizer", "albert": "AlbertTokenizerFast",
    "deberta-v2": "DebertaV2Tokenizer", "modernbert": "PreTrainedTokenizerFast",
}  # fmt: skip
_POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_LIMITS = (None, 6, 17, 64, 100, 128, 400, 10**30)
# The names of the modules until version 5 of sentence-transformers, and since version 6.
_BEFORE = defaultdict(lambda: "sentence_transformers.models.")
_SINCE = {
    "Transformer": "sentence_transformers.base.modules.transformer.",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.",
    "Dense": "sentence_transformers.base.modules.dense.",
    "Normalize": "sentence_transformers.base.modules.normalize.",
}
_ACTIVATIONS = ("torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity",
                "torch.nn.modules.activation.GELU", "torch.nn.modules.activation.ReLU")  # fmt: skip


def draw_encoder(
    source: Callable[[str], Path], folder: Path, rng: random.Random
) -> tuple[str, dict[str, Any]]:
    """Write the folder of an encoder; return its family and what was drawn."""
    family = rng.choice(FAMILIES)
    nested = rng.random() < 0.2  # as before version 2
    inner = folder / "0_Transformer" if nested else folder
    shutil.copytree(source(family), inner)
    drawn = _draw_tokenizer(inner, family, rng)
    poolings = rng.sample(_POOLINGS, rng.choice((1, 1, 1, 2)))
    modules = ["Transformer", "Pooling", *rng.choice(([], [], [], ["Dense"], ["Dense", "Dense"])),
               *(["Normalize"] if rng.random() < 0.5 else [])]  # fmt: skip
    types = rng.choice((_BEFORE, _SINCE))
    entries = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": types[kind] + kind}
        for i, kind in enumerate(modules)
    ]
    if not nested:
        entries[0]["path"] = ""
    _write(folder / "modules.json", entries)
    pooling = _draw_pooling(poolings, rng)
    _write(folder / "1_Pooling/config.json", pooling)
    width = 32 * len(poolings)
    for entry in entries[2:]:
        place = folder / str(entry["path"])
        place.mkdir()
        if entry["type"].endswith("Dense"):
            width = _draw_dense(place, width, rng)
    limit = rng.choice(_LIMITS[:7])
    text_options = {"max_seq_length": limit, "do_lower_case": rng.random() < 0.3}
    name = rng.choice(("bert", "bert", "roberta", "distilbert"))
    if rng.random() < 0.8:
        _write(inner / f"sentence_{name}_config.json", text_options)
    settings = _draw_settings(width, rng)
    if rng.random() < 0.8:
        _write(folder / "config_sentence_transformers.json", settings)
    drawn |= {"entries": entries, "pooling": pooling, **text_options, "settings": settings}
    return family, drawn


def _draw_pooling(poolings: list[str], rng: random.Random) -> dict[str, Any]:
    """Return the configuration of a pooling, in the layout of some version."""
    if rng.random() < 0.5:
        width = rng.choice(("word_embedding_dimension", "embedding_dimension"))
        return {"pooling_mode": poolings, width: 32}
    names = {"lasttoken": "lasttoken", "cls": "cls_token", "mean": "mean_tokens",
             "max": "max_tokens", "weightedmean": "weightedmean_tokens"}  # fmt: skip
    flags = {f"pooling_mode_{names.get(mode, mode)}": mode in poolings for mode in _POOLINGS}
    return flags | {"word_embedding_dimension": 32}


def _draw_dense(folder: Path, width: int, rng: random.Random) -> int:
    """Write a Dense module for vectors of some width; return the width of what it gives."""
    out, biased = rng.choice((16, 32, 48)), rng.random() < 0.5
    values = np.random.default_rng(rng.randrange(2**32))
    weights = {"linear.weight": values.normal(0, 0.2, (out, width)).astype(np.float32)}
    if biased:
        weights["linear.bias"] = values.normal(0, 0.2, out).astype(np.float32)
    config = {"in_features": width, "out_features": out, "bias": biased,
              "activation_function": rng.choice(_ACTIVATIONS)}  # fmt: skip
    if rng.random() < 0.2:
        config["use_residual"] = True
        if out != width:
            weights["residual.weight"] = values.normal(0, 0.2, (out, width)).astype(np.float32)
    _write(folder / "config.json", config)
    save_file(weights, folder / "model.safetensors")
    return out


def _draw_settings(width: int, rng: random.Random) -> dict[str, Any]:
    """Return the settings of an encoder whose vectors have some width."""
    prompts = {"query": "question: ", "passage": ""} if rng.random() < 0.4 else {}
    settings: dict[str, Any] = {"prompts": prompts}
    if prompts and rng.random() < 0.6:
        settings["default_prompt_name"] = rng.choice(sorted(prompts))
    settings["similarity_fn_name"] = rng.choice(("cosine", "dot", "euclidean", "manhattan", None))
    if rng.random() < 0.2:
        settings["truncate_dim"] = rng.choice((None, 8, width))
    return settings


def draw_cross_encoder(
    source: Callable[[str], Path], tokenizers: Callable[[str], Path], folder: Path,
    rng: random.Random,
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """Write the folder of a cross-encoder, at times with the tokenizer of another family."""
    family = rng.choice(("bert", "roberta", "electra", "xlm-roberta"))
    shutil.copytree(source(family), folder)
    if family == "roberta" and rng.random() < 0.6:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizers("bert") / name, folder / name)
        drawn = _draw_tokenizer(folder, "bert", rng)
    else:
        drawn = _draw_tokenizer(folder, family, rng)
    if rng.random() < 0.3:  # a stray file, which counts with modules.json alone
        _write(folder / "sentence_bert_config.json", {"max_seq_length": 20})
    return family, drawn


def draw_texts(rng: random.Random, limit: int) -> list[str]:
    """Return texts of every category of Unicode, of nothing visible, and around the limit."""
    kinds = _characters()
    words = ["the", "Old", "river", "TOWN", "naïve", "Fluß", "人生", "ẞ", "run", "x"]
    texts = ["a river", "\u200b a", "e\u0301 É"]
    for _ in range(4):
        chosen = "".join(rng.choice(kinds[rng.choice(sorted(kinds))]) for _ in range(12))
        texts.append(f"{rng.choice(words)} {chosen} {rng.choice(words)}")
    for count in (limit - 3, limit - 2, limit - 1, 2 * limit):
        texts.append(" ".join(rng.choice(words) for _ in range(max(1, count))))
    return texts


@cache
def _characters() -> dict[str, list[str]]:
    """Return characters by their category, without lone surrogates, which are no text."""
    found: dict[str, list[str]] = defaultdict(list)
    for code in range(0, sys.maxunicode + 1, 7):
        kind = unicodedata.category(chr(code))
        if kind != "Cs":
            found[kind].append(chr(code))
    return found


def _draw_tokenizer(folder: Path, family: str, rng: random.Random) -> dict[str, Any]:
    """Change the settings of a tokenizer at random; return those that were drawn."""
    choices: dict[str, tuple[Any, ...]] = {
        "tokenizer_class": (
            *[CLASSES[family]] * 4,
            "PreTrainedTokenizerFast",
            "PreTrainedTokenizerFast",
            "UnheardOfTokenizer",
        ),
        "model_max_length": _LIMITS,
        "truncation_side": ("left", "right"),
        "do_lower_case": (True, False),
        "strip_accents": (True, False, None),
        "tokenize_chinese_chars": (True, False),
        "add_prefix_space": (True, False),
        "keep_accents": (True, False),
    }
    drawn = {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.5}
    if rng.random() < 0.05:
        drawn[rng.choice(("add_bos_token", "add_eos_token"))] = rng.choice((True, False))
    path = folder / "tokenizer_config.json"
    _write(path, json.loads(path.read_text()) | drawn)
    if rng.random() < 0.3:
        drawn["added"] = _draw_added_token(folder, rng)
    if rng.random() < 0.5:
        cut = {"direction": rng.choice(("Left", "Right")), "max_length": rng.choice((5, 30, 300)),
               "strategy": "LongestFirst", "stride": 0}  # fmt: skip
        drawn["truncation"] = cut if rng.random() < 0.7 else None
        path = folder / "tokenizer.json"
        _write(path, json.loads(path.read_text()) | {"truncation": drawn["truncation"]})
    return drawn


def _draw_added_token(folder: Path, rng: random.Random) -> dict[str, Any]:
    """Make a word of the vocabulary an added token, in one of its files or in both."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    pieces = tokenizer["model"]["vocab"]
    ids = {piece[0]: i for i, piece in enumerate(pieces)} if isinstance(pieces, list) else pieces
    content = rng.choice([word for word in ("river", "the", "old", "x", "a", "o") if word in ids])
    token = {"content": content, "special": rng.random() < 0.2}
    token |= {key: rng.random() < 0.5 for key in ("single_word", "lstrip", "rstrip", "normalized")}
    where = rng.choice(("tokenizer.json", "tokenizer_config.json", "both"))
    if where != "tokenizer_config.json":
        tokenizer["added_tokens"].append({"id": ids[content], **token})
        tokenizer["added_tokens"].sort(key=lambda one: one["id"])
        _write(path, tokenizer)
    if where != "tokenizer.json":
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text())
        listed = config.get("added_tokens_decoder", {})
        _write(path, config | {"added_tokens_decoder": listed | {str(ids[content]): token}})
    return token | {"where": where}


def _write(path: Path, values: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))
