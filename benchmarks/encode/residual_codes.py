"""Measure what MaxSim loses where the token vectors of documents are kept in fewer bytes.

    python benchmarks/encode/residual_codes.py --texts FILE [--model MODEL] [--documents N]

The first texts of a file are queries, the others documents. For each way to keep documents, this
prints the bytes of a token, how far the scores are from those in float32 (the mean, as a part of
the standard deviation of the scores of a query), and how many of the ten best documents are among
the ten best. A late-interaction model is encoded as it is; of an encoder, the vectors of tokens get
unit length. Pooled documents keep half as many vectors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mirror_rt import Encoder, MultiVectorEncoder, quantize_embeddings
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.model_kinds import LATE
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.rows import read_texts
from mirror_rt.vectors.maxsim import maxsim
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.quantization import unit_ranges
from mirror_rt.vectors.residual_codes import ResidualCodec
from mirror_rt.vectors.token_pooling import pool_tokens

QUERIES = 50


def token_vectors(model: str, texts: list[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the vectors of queries and documents."""
    folder = LoadOptions().find(model)
    if describe_folder(folder).own_kind is LATE:
        with MultiVectorEncoder.load(folder) as late:
            return late.encode_query(texts[:QUERIES]), late.encode_document(texts[QUERIES:])
    with Encoder.load(folder) as encoder:
        found = [normalize_rows(one) for one in encoder.encode_tokens(texts)]
    return found[:QUERIES], found[QUERIES:]


def ways(
    queries: list[np.ndarray], documents: list[np.ndarray]
) -> Iterator[tuple[str, float, np.ndarray]]:
    """Yield a name, the bytes of a token, and the scores, of each way to keep documents."""
    dimension, tokens = documents[0].shape[1], sum(map(len, documents))
    yield "float16", 2 * dimension, maxsim(queries, [one.astype(np.float16) for one in documents])
    codes = [quantize_embeddings(one, "int8") for one in documents]
    yield "int8", dimension, maxsim(queries, codes)
    for factor in (2, 4):
        pooled = [pool_tokens(one, factor) for one in documents]
        share = sum(map(len, pooled)) / tokens
        coded = [
            quantize_embeddings(one, "int8", unit_ranges(dimension)) for one in pooled
        ]  # means are shorter
        yield f"int8, pooled by {factor}", share * dimension, maxsim(queries, coded)
    every = np.concatenate(documents)
    for bits in (4, 2, 1):
        codec = ResidualCodec.train(every, bits)
        found = codec.maxsim(queries, [codec.compress(one) for one in documents])
        name = f"residuals of {bits} bits, {len(codec.centroids)} centroids"
        yield name, 4 + dimension * bits / 8, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--documents", type=int, default=2000)
    given = parser.parse_args()
    queries, documents = token_vectors(
        given.model, read_texts(given.texts, QUERIES + given.documents)
    )
    exact = maxsim(queries, documents)
    best = np.argsort(-exact, axis=1)[:, :10]
    spread = exact.std(axis=1, keepdims=True)
    tokens, dimension = sum(map(len, documents)), documents[0].shape[1]
    print(f"{len(documents)} documents of {tokens} tokens, {dimension} dimensions, {given.model}")
    print("| kept as | bytes of a token | error of a score | of the ten best |")
    print("|---|--:|--:|--:|")
    print(f"| float32 | {4 * dimension} | 0 | 10 |")
    for name, size, found in ways(queries, documents):
        error = (np.abs(found - exact) / spread).mean()
        own = np.argsort(-found, axis=1)[:, :10]
        rows = zip(own.tolist(), best.tolist(), strict=True)
        kept = np.mean([len(set(a) & set(b)) for a, b in rows])
        print(f"| {name} | {size:.0f} | {error:.4f} | {kept:.1f} |", flush=True)


if __name__ == "__main__":
    main()
