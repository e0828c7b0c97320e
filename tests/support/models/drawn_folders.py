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

FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "albert")
CLASSES = {
    "bert": "BertTokenizer", "electra": "ElectraTokenizerFast", "distilbert": "DistilBertTokenizer",
    "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizerFast",
    "xlm-roberta": "XLMRobertaTokenizer", "albert": "AlbertTokenizerFast",
}  # fmt: skip
_POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_LIMITS = (None, 6, 17, 64, 100, 128, 400, 10**30)
_LIBRARY = "sentence_transformers.models."


def draw_encoder(
    source: Callable[[str], Path], folder: Path, rng: random.Random
) -> tuple[str, dict[str, Any]]:
    """Write the folder of an encoder; return its family and what was drawn."""
    family = rng.choice(FAMILIES)
    shutil.copytree(source(family), folder)
    drawn = _draw_tokenizer(folder, family, rng)
    poolings = rng.sample(_POOLINGS, rng.choice((1, 1, 1, 2)))
    modules = ["Transformer", "Pooling", *(["Normalize"] if rng.random() < 0.5 else [])]
    entries = [
        {"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{kind}", "type": _LIBRARY + kind}
        for i, kind in enumerate(modules)
    ]
    _write(folder / "modules.json", entries)
    if rng.random() < 0.5:
        pooling: dict[str, Any] = {"pooling_mode": poolings}
    else:
        names = {"lasttoken": "lasttoken", "cls": "cls_token", "mean": "mean_tokens",
                 "max": "max_tokens", "weightedmean": "weightedmean_tokens"}  # fmt: skip
        flags = {f"pooling_mode_{names.get(mode, mode)}": mode in poolings for mode in _POOLINGS}
        pooling = flags
    _write(folder / "1_Pooling/config.json", pooling | {"word_embedding_dimension": 32})
    for entry in entries[2:]:
        (folder / entry["path"]).mkdir()
    limit = rng.choice(_LIMITS[:7])
    text_options = {"max_seq_length": limit, "do_lower_case": rng.random() < 0.3}
    name = rng.choice(("bert", "bert", "roberta", "distilbert"))
    if rng.random() < 0.8:
        _write(folder / f"sentence_{name}_config.json", text_options)
    prompts = {"query": "question: ", "passage": ""} if rng.random() < 0.4 else {}
    settings: dict[str, Any] = {"prompts": prompts}
    if prompts and rng.random() < 0.6:
        settings["default_prompt_name"] = rng.choice(sorted(prompts))
    settings["similarity_fn_name"] = rng.choice(("cosine", "dot", "euclidean", "manhattan", None))
    if rng.random() < 0.8:
        _write(folder / "config_sentence_transformers.json", settings)
    drawn |= {"modules": modules, "pooling": pooling, **text_options, "prompts": settings}
    return family, drawn


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
        "tokenizer_class": (CLASSES[family], CLASSES[family], "PreTrainedTokenizerFast"),
        "model_max_length": _LIMITS,
        "truncation_side": ("left", "right"),
        "do_lower_case": (True, False),
        "strip_accents": (True, False, None),
        "tokenize_chinese_chars": (True, False),
        "add_prefix_space": (True, False),
        "keep_accents": (True, False),
    }
    drawn = {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.5}
    path = folder / "tokenizer_config.json"
    _write(path, json.loads(path.read_text()) | drawn)
    if rng.random() < 0.5:
        cut = {"direction": rng.choice(("Left", "Right")), "max_length": rng.choice((5, 30, 300)),
               "strategy": "LongestFirst", "stride": 0}  # fmt: skip
        drawn["truncation"] = cut if rng.random() < 0.7 else None
        path = folder / "tokenizer.json"
        _write(path, json.loads(path.read_text()) | {"truncation": drawn["truncation"]})
    return drawn


def _write(path: Path, values: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))
