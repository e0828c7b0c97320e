"""Compare `search` with faiss and usearch: every row of a corpus, in each precision.

    python benchmarks/encode/search.py [--rows N] [--dimension D] [--threads T] [--repeats R]

The contenders of a precision take turns, and medians are printed; k = 10. Those that are not
installed are left out (pip install faiss-cpu usearch). The corpus is of random unit vectors, and
the queries are some of its rows with noise, which every contender must find first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--rows", type=int, default=200_000)
parser.add_argument("--dimension", type=int, default=384)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--repeats", type=int, default=7)
ARGUMENTS = parser.parse_args()
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(ARGUMENTS.threads)

import numpy as np  # noqa: E402  # after the number of its threads is set

from mirror_rt import quantize_embeddings, search  # noqa: E402
from mirror_rt.io.tables import markdown_table  # noqa: E402
from mirror_rt.vectors import search as retrieval  # noqa: E402

K, QUERIES = 10, (1, 64)
Search = Callable[[Any], Any]  # float32 [q, D] to the indices [q, K]


def of_faiss(x: Any, precision: str) -> Search:
    import faiss

    faiss.omp_set_num_threads(ARGUMENTS.threads)
    dimension = x.shape[1]
    if precision == "ubinary":
        index = faiss.IndexBinaryFlat(dimension)
        index.add(np.packbits(x > 0, axis=1))
        return lambda queries: index.search(np.packbits(queries > 0, axis=1), K)[1]
    if precision == "float32":
        index = faiss.IndexFlatIP(dimension)
    else:
        quantizer = faiss.ScalarQuantizer
        kind = quantizer.QT_fp16 if precision == "float16" else quantizer.QT_8bit
        index = faiss.IndexScalarQuantizer(dimension, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(x)
    index.add(x)
    return lambda queries: index.search(queries, K)[1]


def of_usearch(x: Any, precision: str) -> Search:
    from usearch.index import MetricKind
    from usearch.index import search as exact_search

    bits = precision == "ubinary"

    def quantized(values: Any) -> Any:
        if bits:
            return np.packbits(values > 0, axis=1)
        if precision == "int8":
            return np.rint(np.clip(values * 127 / np.abs(x).max(), -127, 127)).astype(np.int8)
        return values.astype(precision)

    corpus, metric = quantized(x), MetricKind.Hamming if bits else MetricKind.IP

    def run(queries: Any) -> Any:
        found = exact_search(
            corpus, quantized(queries), K, metric, exact=True, threads=ARGUMENTS.threads
        )
        return np.atleast_2d(found.keys)

    return run


def contenders(x: Any, precision: str) -> Iterator[tuple[str, Search]]:
    corpus = quantize_embeddings(x, precision)
    yield "mirror_rt", lambda queries: search(queries, corpus, K).indices
    if find_spec("faiss"):
        yield "faiss", of_faiss(x, precision)
    if find_spec("usearch"):
        yield "usearch", of_usearch(x, precision)


def main() -> None:
    retrieval.available_cpus = lambda: ARGUMENTS.threads
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ARGUMENTS.rows, ARGUMENTS.dimension), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    rows = []
    for precision in ("float32", "float16", "int8", "ubinary"):
        runs = dict(contenders(x, precision))
        cells = {name: [precision, name] for name in runs}
        for count in QUERIES:
            wanted = rng.integers(0, len(x), count)
            noise = rng.standard_normal((count, x.shape[1]), np.float32) * np.float32(0.01)
            queries = x[wanted] + noise
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for name, run in runs.items():
                assert (np.asarray(run(queries))[:, 0] == wanted).all(), (precision, name)
            for _ in range(ARGUMENTS.repeats):
                for name, run in runs.items():
                    began = time.perf_counter()
                    run(queries)
                    seconds[name].append(time.perf_counter() - began)
            for name, values in seconds.items():
                cells[name].append(f"{statistics.median(values) * 1e3:.2f}")
        rows += cells.values()
    print(f"{ARGUMENTS.rows:,} x {ARGUMENTS.dimension}, {ARGUMENTS.threads} threads, k = {K}\n")
    columns = [f"{count} {'query' if count == 1 else 'queries'}, ms" for count in QUERIES]
    print(markdown_table(["precision", "library", *columns], rows, numbers=True))


if __name__ == "__main__":
    main()
