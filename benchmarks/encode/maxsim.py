"""Compare MaxSim of one query and many documents with numpy, PyTorch and PyLate.

    python benchmarks/encode/maxsim.py [--documents N] [--tokens T] [--threads T] [--json FILE]

All sides but residual codes give the same scores (checked first) and run in turn; medians are
printed, and the ratio of each to ours in float32. numpy gets its best formulation: one product with
all documents, and the maximum of each by `maximum.reduceat`, or where all are of one length by
`max`. PyTorch computes as PyLate's `colbert_scores` does, on documents that were padded before;
PyLate itself is run where it is installed, and pads a list of arrays, as its `rank.rerank` does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--documents", type=int, default=1000)
parser.add_argument("--tokens", type=int, default=200)
parser.add_argument("--query", type=int, default=32)
parser.add_argument("--dimension", type=int, default=128)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--repeats", type=int, default=15)
parser.add_argument("--json", type=Path)
ARGUMENTS = parser.parse_args()
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(ARGUMENTS.threads)

import numpy as np  # noqa: E402  # after the number of its threads is set

from mirror_rt import _core, quantize_embeddings  # noqa: E402
from mirror_rt.vectors.maxsim import maxsim  # noqa: E402
from mirror_rt.vectors.normalization import normalize_rows  # noqa: E402
from mirror_rt.vectors.residual_codes import ResidualCodec  # noqa: E402

rng = np.random.default_rng(0)


def unit(count: int) -> np.ndarray:
    return normalize_rows(rng.normal(size=(count, ARGUMENTS.dimension)).astype(np.float32))


QUERY = unit(ARGUMENTS.query)
ALL = unit(ARGUMENTS.documents * ARGUMENTS.tokens)
DOCUMENTS = list(ALL.reshape(ARGUMENTS.documents, ARGUMENTS.tokens, -1))
STARTS = np.arange(0, len(ALL), ARGUMENTS.tokens)
HALVES = [one.astype(np.float16) for one in DOCUMENTS]
CODES = [quantize_embeddings(one, "int8") for one in DOCUMENTS]
CODECS = {bits: ResidualCodec.train(ALL[:20000], bits) for bits in (1, 2, 4)}
RESIDUALS = {bits: [one.compress(d) for d in DOCUMENTS] for bits, one in CODECS.items()}


def at_once() -> np.ndarray:
    return np.maximum.reduceat(QUERY @ ALL.T, STARTS, axis=1).sum(axis=0)


def of_one_length() -> np.ndarray:
    products = (QUERY @ ALL.T).reshape(len(QUERY), len(DOCUMENTS), -1)
    return products.max(axis=2).sum(axis=0)


def one_by_one() -> np.ndarray:
    return np.array([(QUERY @ one.T).max(axis=1).sum() for one in DOCUMENTS])


def sides() -> dict[str, Callable[[], np.ndarray]]:
    found: dict[str, Callable[[], np.ndarray]] = {
        "mirror_rt float32": lambda: maxsim([QUERY], DOCUMENTS)[0],
        "mirror_rt float16": lambda: maxsim([QUERY], HALVES)[0],
        "mirror_rt int8": lambda: maxsim([QUERY], CODES)[0],
        **{
            f"mirror_rt residuals of {bits} bits": lambda bits=bits: CODECS[bits].maxsim(
                [QUERY], RESIDUALS[bits]
            )[0]
            for bits in CODECS
        },
        "numpy, reduceat": at_once,
        "numpy, max": of_one_length,
        "numpy, one by one": one_by_one,
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(ARGUMENTS.threads)
    query, documents = torch.from_numpy(QUERY)[None], torch.from_numpy(np.stack(DOCUMENTS))
    found["PyTorch, as PyLate, padded before"] = lambda: (
        torch.einsum("ash,bth->abst", query, documents).max(dim=-1).values.sum(dim=-1)[0].numpy()
    )
    try:
        from pylate.scores import colbert_scores
    except ImportError:
        return found

    def of_pylate() -> np.ndarray:
        tensors = [torch.from_numpy(one) for one in DOCUMENTS]
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
        return colbert_scores(query, padded)[0].numpy()

    found["PyLate, with its padding"] = of_pylate
    return found


def main() -> None:
    every, times = sides(), dict[str, list[float]]()
    expected = one_by_one()
    for name, run in every.items():
        most = {"mirror_rt float16": 0.05, "mirror_rt int8": 1.0}.get(name, 1e-3)
        if "residuals" in name:  # of random vectors, which lie about no centroids
            continue
        assert np.abs(run() - expected).max() < most, name
    for _ in range(ARGUMENTS.repeats):
        for name, run in every.items():
            began = time.perf_counter()
            run()
            times.setdefault(name, []).append(time.perf_counter() - began)
    ours = times["mirror_rt float32"]
    isa = _core.vector_instruction_sets()[-1]
    print(f"{platform.machine()}, {isa}, {ARGUMENTS.threads} threads, {ARGUMENTS}")
    rows = {}
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, ours, strict=True))
        rows[name] = {"ms": 1e3 * statistics.median(seconds), "ratio": ratio}
        print(f"{name:36} {rows[name]['ms']:8.2f} ms  {ratio:5.2f} x the time of ours in float32")
    if ARGUMENTS.json:
        ARGUMENTS.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
