"""Make tiny late-interaction models, in the layouts of three libraries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

DIMENSION = 8
PREFIXES = ("[Q] ", "[D] ")
LIBRARY = "sentence_transformers."
PUNCTUATION = [".", ",", "!"]


def add_tokens(source: Path, folder: Path, tokens: tuple[str, ...]) -> Path:
    """Copy a transformer, with added tokens and random vectors of theirs."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source)
    tokenizer.add_tokens([*tokens])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def _projection(hidden: int, dimension: int = DIMENSION, seed: int = 2) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(dimension, hidden))
    return drawn.astype(np.float32)


def save_dense(folder: Path, weights: dict[str, np.ndarray], **config: object) -> None:
    """Save a Dense module."""
    outputs, inputs = weights["linear.weight"].shape
    folder.mkdir()
    values = {"in_features": inputs, "out_features": outputs, "bias": "linear.bias" in weights,
              "activation_function": "torch.nn.modules.linear.Identity"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values | config), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")


def write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def save_pylate(source: Path, folder: Path, *, residual: bool = False, **settings: object) -> Path:
    """Write a folder as PyLate does, whose settings may differ from its usual ones."""
    add_tokens(source, folder, PREFIXES)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden = config.get("hidden_size") or config["dim"]  # as DistilBERT calls it
    places = {"": f"{LIBRARY}models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    save_dense(folder / "1_Dense", {"linear.weight": _projection(hidden)}, use_residual=False)
    if residual:
        places["2_Dense"] = places["1_Dense"]
        weights = {"linear.weight": _projection(DIMENSION, 6, 3),
                   "linear.bias": _projection(1, 6, 4)[:, 0],
                   "residual.weight": _projection(DIMENSION, 6, 5)}  # fmt: skip
        save_dense(folder / "2_Dense", weights, use_residual=True)
    write_json(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(places.items())
    ])  # fmt: skip
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 11, "do_lower_case": False})
    usual = {
        "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None,
        "similarity_fn_name": "MaxSim", "query_prefix": PREFIXES[0], "document_prefix": PREFIXES[1],
        "query_length": 16, "document_length": 24, "attend_to_expansion_tokens": False,
        "skiplist_words": PUNCTUATION, "do_query_expansion": True,
    }  # fmt: skip
    write_json(folder / "config_sentence_transformers.json", usual | settings)
    return folder


def save_stanford(source: Path, folder: Path, **settings: object) -> Path:
    """Write a folder as Stanford's ColBERT does."""
    add_tokens(source, folder, ("[unused0]", "[unused1]"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", config | {"architectures": ["HF_ColBERT"]})
    weights = {f"bert.{name}": one for name, one in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = _projection(config["hidden_size"])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    usual = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 16,
             "doc_maxlen": 24, "attend_to_mask_tokens": False, "mask_punctuation": True,
             "similarity": "cosine", "lr": 1e-5}  # fmt: skip
    write_json(folder / "artifact.metadata", usual | settings)
    return folder


def save_library(
    source: Path, folder: Path, *, expansion: dict[str, object] | None, normalize: bool = True
) -> Path:
    """Save a MultiVectorEncoder of sentence-transformers."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    made = folder.with_name(f"{folder.name}-tokens")
    transformer = Transformer(
        str(add_tokens(source, made, PREFIXES)), query_length=20, document_length=24,
        query_expansion=expansion,
    )  # fmt: skip
    hidden = transformer.get_embedding_dimension()
    modules = [
        transformer,
        Dense(hidden, DIMENSION, bias=False, activation_function=torch.nn.Tanh(),
              init_weight=torch.from_numpy(_projection(hidden)),
              module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=PUNCTUATION),
        *([Normalize(module_input_name="token_embeddings")] if normalize else []),
    ]  # fmt: skip
    prompts = dict(zip(("query", "document"), PREFIXES, strict=True))
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save_pretrained(str(folder))
    shutil.rmtree(made)
    return folder
