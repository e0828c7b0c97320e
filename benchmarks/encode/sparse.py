"""Encode texts with a SPLADE model of BERT's size, beside sentence-transformers, in turn.

    python benchmarks/encode/sparse.py [--rounds 7] [--texts 64] [--tokens 60]

The weights are random, as the time does not depend on them; a model of such weights has words by
the ten thousand, so each side keeps 256 of a text. Both sides run in this process, which needs the
extras `train` and `test`, on as many threads. Beside whole texts the head alone is timed: in C++,
and in numpy, by blocks of 4,096 words with running maxima, as it would be without C++. The script
prints medians over the rounds, and ratios as medians of the ratios in each round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

import numpy as np
import sentence_transformers
import torch
from helpers import median_ratio
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from mirror_rt import SparseEncoder, _core
from mirror_rt.bundle.word_tensors import read_words
from mirror_rt.inference.vector_layers import ACTIVATIONS
from mirror_train.model.model_folder import resolve_model

BLOCK, KEPT = 4096, 256


def make(folder: Path) -> Path:
    """Write a model of BERT-base's sizes."""
    tokenizer, _ = resolve_model("all-MiniLM-L6-v2")
    config = AutoConfig.for_model("bert", vocab_size=30_522)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder / "masked")
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder / "masked")
    sentence_transformers.SparseEncoder(str(folder / "masked")).save_pretrained(str(folder))
    return folder


def numpy_head(weights, tokens, offsets):
    """Weigh words by blocks, each pooled before the next is computed."""
    x = tokens @ weights["dense.weight"].T + weights["dense.bias"]
    x = ACTIVATIONS["gelu"](x.astype(np.float64)).astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-12)
    x = x * weights["norm.weight"] + weights["norm.bias"]
    decoder, bias = weights["decoder.weight"], weights["decoder.bias"]
    found = np.empty((len(offsets) - 1, len(decoder)), np.float32)
    for start in range(0, len(decoder), BLOCK):
        logits = x @ decoder[start : start + BLOCK].T + bias[start : start + BLOCK]
        found[:, start : start + BLOCK] = np.maximum.reduceat(logits, offsets[:-1])
    return np.log1p(np.maximum(found, 0))


def sides_of(folder: Path, texts: list[str], threads: int):
    """Return the calls that are timed, by name."""
    peer = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    made = {"sentence-transformers": lambda: peer.encode(texts, max_active_dims=KEPT)}
    for variant in ("fp32", "int8"):
        encoder = SparseEncoder.load(folder, variant=variant, threads=threads)
        made[variant] = partial(encoder.encode, texts, max_active_dims=KEPT)
    _, weights = read_words(encoder.description)
    layers = ("dense", "norm", "decoder")
    arrays = {one: (np.ascontiguousarray(weights[f"{one}.weight"].T), weights[f"{one}.bias"])
              for one in layers}  # fmt: skip
    head = _core.NativeVocabulary(precision="fp32", activation="gelu", epsilon=1e-12, **arrays)
    offsets = np.arange(0, 64 * 32 + 1, 64)
    tokens = np.random.default_rng(0).normal(size=(offsets[-1], 768)).astype(np.float32)
    pooled = {"pooling": "max", "twice": False, "threads": threads, "spins": 4000}
    made["head in numpy"] = partial(numpy_head, weights, tokens, offsets)
    made["head in C++"] = partial(head.run, tokens, offsets, **pooled)
    np.testing.assert_allclose(made["head in C++"](), made["head in numpy"](), atol=1e-3)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=60)
    options = parser.parse_args()
    folder = make(Path(tempfile.mkdtemp()))
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    words = sorted(word for word in vocabulary if word.isalpha())
    chosen = np.random.default_rng(0).choice(words, (options.texts, options.tokens))
    sides = sides_of(folder, [" ".join(row) for row in chosen], torch.get_num_threads())
    rounds = []
    for _ in range(options.rounds):
        seconds = {}
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            seconds[name] = time.perf_counter() - began
        rounds.append(seconds)
    for name in sides:
        print(f"{name}: {np.median([found[name] for found in rounds]):.3f} s")
    peer, (numpy, native) = "sentence-transformers", ("head in numpy", "head in C++")
    for variant in ("fp32", "int8"):
        print(f"{variant}: {median_ratio(rounds, float, peer, variant):.2f} times as fast")
    print(f"head in C++: {median_ratio(rounds, float, numpy, native):.2f} times as fast")


if __name__ == "__main__":
    main()
