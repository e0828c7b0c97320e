"""Compare the native extension with numpy in quantisation and top-k.

    python benchmarks/encode/vector_ops.py [--rows N] [--dimension D] [--threads T] [--json FILE]

Both sides of a pair give the same result (checked first) and run alternately; medians are printed.
numpy gets its best formulation: blocks that stay in the cache, BLAS for products, bitwise_count for
bits, argpartition for the best k. Two rows show operations that the project leaves to numpy,
against a copy of the input.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--rows", type=int, default=200_000)
parser.add_argument("--dimension", type=int, default=384)
parser.add_argument("--k", type=int, default=10)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--repeats", type=int, default=9)
parser.add_argument("--json", type=Path)
ARGUMENTS = parser.parse_args()
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(ARGUMENTS.threads)

import numpy as np  # noqa: E402  # after the number of its threads is set

from mirror_rt import quantize_embeddings, search  # noqa: E402
from mirror_rt.vectors import search as retrieval  # noqa: E402
from mirror_rt.vectors.quantization import unit_ranges  # noqa: E402

BLOCK = 4096
K = ARGUMENTS.k


def blocks(rows):
    return [slice(i, i + BLOCK) for i in range(0, len(rows), BLOCK)]


def int8_in_numpy(x):
    starts, ends = unit_ranges(x.shape[1])
    steps, out = (ends - starts) / 255, np.empty(x.shape, np.int8)
    for part in blocks(x):
        codes = np.subtract(x[part], starts)
        codes /= steps
        np.floor(codes, out=codes)
        np.clip(codes, 0, 255, out=codes)
        codes -= 128
        out[part] = codes
    return out


def best(scores, k=K):
    k = min(k, scores.shape[1])
    some = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, order, 1)


def best_of_blocks(score_block, corpus):
    """Take the best k of each block, then the best of those, without a matrix of all scores."""
    scores, indices = [], []
    for part in blocks(corpus):
        block = score_block(corpus[part])
        found = best(block)
        scores.append(np.take_along_axis(block, found, 1))
        indices.append(found + part.start)
    scores, indices = np.concatenate(scores, 1), np.concatenate(indices, 1)
    return np.take_along_axis(indices, best(scores), 1)


def floats_in_numpy(queries, corpus):
    return best_of_blocks(lambda block: queries @ block.T, corpus)


def codes_in_numpy(queries, codes):
    starts, ends = unit_ranges(queries.shape[1])
    weights = queries * ((ends - starts) / 255)
    return best_of_blocks(lambda block: weights @ block.astype(np.float32).T, codes)


def bits_in_numpy(queries, bits):
    """Find candidates by Hamming distance, then score them as `search` does."""
    signs = np.packbits(queries > 0, axis=1)
    found = np.empty((len(queries), K), np.int64)
    wide = bits.view(np.uint64)
    for q, query in enumerate(queries):
        different = np.bitwise_count(wide ^ signs[q].view(np.uint64)).sum(1, dtype=np.int32)
        near = np.argpartition(different, 4 * K)[: 4 * K]
        scores = (2 * np.unpackbits(bits[near], axis=1) - np.float32(1)) @ query
        found[q] = near[np.argsort(-scores, kind="stable")[:K]]
    return found


def cases():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ARGUMENTS.rows, ARGUMENTS.dimension), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    yield "int8 codes", lambda: quantize_embeddings_of(x, "int8"), lambda: int8_in_numpy(x), 1.0
    yield "packed bits (a copy)", lambda: x.copy(), lambda: np.packbits(x > 0, axis=1), None
    codes, bits = quantize_embeddings(x, "int8"), quantize_embeddings(x, "ubinary")
    for n in (1, 16, 128):
        queries = x[rng.integers(0, len(x), n)] + 0.03 * rng.standard_normal((n, x.shape[1]))
        queries = queries.astype(np.float32)
        for name, corpus, numpy in [
            ("float32", x, floats_in_numpy),
            ("int8", codes, codes_in_numpy),
            ("bits", bits, bits_in_numpy),
        ]:
            yield (
                f"search {name}, {n} queries",
                lambda queries=queries, corpus=corpus: search(queries, corpus, K).indices,
                lambda queries=queries, corpus=corpus, numpy=numpy: numpy(queries, corpus),
                0.98,
            )


def quantize_embeddings_of(x, precision):
    return quantize_embeddings(x, precision, unit_ranges(x.shape[1]))


def measure(native, numpy, agreement):
    """Return the median milliseconds of both sides, run in turn, after a comparison."""
    if agreement is not None:
        # Only the first column: among bits at equal distances, each may choose other candidates.
        same = np.mean(native()[:, 0] == numpy()[:, 0])
        assert same >= agreement, f"only {same:.4f} agree"
    times = ([], [])
    for _ in range(ARGUMENTS.repeats):
        for function, seconds in zip((native, numpy), times, strict=True):
            began = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - began)
    return [1e3 * statistics.median(seconds) for seconds in times]


def main():
    retrieval.available_cpus = lambda: ARGUMENTS.threads
    print(
        f"{ARGUMENTS.rows} x {ARGUMENTS.dimension}, k = {K}, {ARGUMENTS.threads} threads\n"
        f"{'':<28}{'native ms':>12}{'numpy ms':>12}{'ratio':>8}"
    )
    results = []
    for name, native, numpy, agreement in cases():
        milliseconds = measure(native, numpy, agreement)
        ratio = milliseconds[1] / milliseconds[0]
        print(f"{name:<28}{milliseconds[0]:>12.2f}{milliseconds[1]:>12.2f}{ratio:>8.2f}")
        results.append({"case": name, "native_ms": milliseconds[0], "numpy_ms": milliseconds[1]})
    if ARGUMENTS.json:
        machine = {"processor": platform.processor(), "numpy": np.__version__}
        shape = {"rows": ARGUMENTS.rows, "dimension": ARGUMENTS.dimension, "k": K}
        content = {"machine": machine, **shape, "threads": ARGUMENTS.threads, "results": results}
        ARGUMENTS.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
