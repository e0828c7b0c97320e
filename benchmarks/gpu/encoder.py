"""Compare the encoder on an NVIDIA GPU with others: vectors, throughput and latency.

    python benchmarks/gpu/encoder.py BUNDLE --model FOLDER [--o4 FOLDER] [--rival-python PATH]
                                    [--texts 20000] [--seconds 165] [--only CONTENDER ...]
                                    [--device cpu] [--json FILE]

Every contender is a process of its own (benchmarks/encode/worker.py). First its vectors, in batches
and alone, are compared with those of fp32 on the CPU; a contender that disagrees or does not start
is left out, with the reason. Then each gets the batch size that is best for it, and they take
turns, for as many rounds as the time allows: texts a second of all texts in one call, and the time
of a call with one short text. The file is written after every one of these steps.

The contenders are this project's graphs (fp16-cuda computes no padding) and its CUDA graphs;
sentence-transformers on --model in half precision, with PyTorch's attention and, if flash_attn is
installed, without padding; and its ONNX backend on --o4, the graph that optimum optimised at level
O4, in the environment of --rival-python.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.rounds import Worker
from encode.setup import LeftOutError
from helpers import write_whole

from mirror_rt import Encoder
from mirror_rt.diagnostics.benchmarking import synthetic_texts

LENGTHS = (4, 8, 8, 12, 16, 16, 24, 32, 48, 64, 96, 128, 256, 500)
SHORT = 12
# The least cosine to fp32 on the CPU that counts as agreement.
AGREES = 0.999
OURS = ("fp16-cuda", "fp16", "fp16-cuda, CUDA graphs")
PACKAGES = ("onnxruntime-gpu", "onnxruntime", "torch", "transformers", "sentence-transformers")


class Benchmark:
    """The steps of the benchmark, and their results so far."""

    def __init__(self, arguments):
        self.a, self.began = arguments, time.monotonic()
        self.folder = arguments.json.with_suffix(".files")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.reference = Encoder.load(arguments.bundle, variant="fp32", providers="cpu")
        self.texts = self.make_texts()
        self.files = {"all": self.texts, "some": self.texts[:: max(1, len(self.texts) // 2000)]}
        self.sample = random.Random(1).sample(self.texts, min(280, len(self.texts)))
        self.files["sample"] = self.sample
        for name, texts in self.files.items():
            self.path(name).write_text(json.dumps(texts), encoding="utf-8")
        self.workers = {}
        self.found = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "versions": versions(),
            "bundle": arguments.bundle.name,
            "device": arguments.device,
            "texts": len(self.texts),
            **{key: {} for key in ("left_out", "agreement", "batch")},
            "rounds": [],
        }

    def path(self, name):
        return self.folder / f"{name}.json"

    def save(self):
        write_whole(self.a.json, json.dumps(self.found, indent=1))

    def make_texts(self):
        """Make texts of many lengths, shuffled; on the CPU only short ones."""
        lengths = LENGTHS if self.a.device == "cuda" else LENGTHS[:7]
        each = -(-self.a.texts // len(lengths))
        texts = [
            text
            for i, length in enumerate(lengths)
            for text in synthetic_texts(self.reference, length, each, seed=i)
        ]
        random.Random(0).shuffle(texts)
        return texts[: self.a.texts]

    def run(self):
        expected = self.reference.encode(self.sample, show_progress_bar=False)
        for name, (python, folder) in self.contenders().items():
            self.attempt(name, self.start, python, folder)
            self.attempt(name, self.compare, expected)
            self.attempt(name, self.search_batch)
        self.reference.close()
        short = synthetic_texts_of(self.a.bundle, SHORT, 64)
        while self.workers and (not self.found["rounds"] or self.seconds_left() > 0):
            one, names = {}, list(self.workers)
            shift = len(self.found["rounds"]) % len(names)
            for name in names[shift:] + names[:shift]:
                self.attempt(name, self.take_turn, short, one)
            self.found["rounds"].append(one)
            self.save()
        for worker in self.workers.values():
            worker.close()

    def seconds_left(self):
        """Return the seconds until a last round may begin, if it takes as long as earlier ones."""
        spent = time.monotonic() - self.began
        return self.a.seconds - spent * (1 + 1 / (len(self.found["rounds"]) + 4))

    def contenders(self):
        """Return name -> the contender's Python, and its model."""
        here, bundle, model = sys.executable, self.a.bundle, self.a.model
        found = {f"mirror-rt {variant}": (here, bundle) for variant in OURS}
        found["sentence-transformers fp16"] = (here, model)
        found["sentence-transformers fp16, flash attention"] = (here, model)
        found["sentence-transformers ONNX O4"] = (self.a.rival_python or here, self.a.o4)
        return {name: found[name] for name in self.a.only or found}

    def attempt(self, name, do, *arguments):
        """Call `do` for a contender, or leave it out from now on if that fails."""
        if name in self.found["left_out"]:
            return
        try:
            do(name, *arguments)
        except (LeftOutError, OSError, json.JSONDecodeError) as error:
            self.found["left_out"][name] = str(error)[:300]
            self.workers.pop(name, None)
            print(f"left out: {name}: {error}", flush=True)
        self.save()

    def start(self, name, python, folder):
        if folder is None or not folder.is_dir():
            raise LeftOutError(f"its model is not here: {folder}")
        self.workers[name] = Worker(name, python, folder, os.cpu_count())

    def compare(self, name, expected):
        """Compare vectors text by text, in batches and alone."""
        in_batches = self.vectors(name, "sample", 32)
        alone = self.vectors(name, "sample", 1, every=14)
        cosines = [cosine(in_batches, expected), cosine(alone, expected[::14])]
        self.found["agreement"][name] = {"batch": cosines[0], "alone": cosines[1]}
        print(f"{name}: least cosine {cosines[0]:.6f}, alone {cosines[1]:.6f}", flush=True)
        if not min(cosines) >= AGREES:
            raise LeftOutError(f"its vectors are others: least cosine {min(cosines):.5f}")

    def vectors(self, name, texts, batch, **order):
        out = self.folder / "vectors.npy"
        self.workers[name](
            "encode", texts=str(self.path(texts)), batch=batch, out=str(out), **order
        )
        vectors = np.load(out)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode(self, name, texts, batch):
        return self.workers[name]("encode", texts=str(self.path(texts)), batch=batch)["seconds"]

    def search_batch(self, name):
        seconds = {}
        for batch in self.workers[name]("batches")["batches"]:
            self.encode(name, "some", batch)  # a warm-up: takes memory, chooses kernels
            seconds[batch] = self.encode(name, "some", batch)
        self.found["batch"][name] = min(seconds, key=seconds.get)

    def take_turn(self, name, short, one):
        batch = self.found["batch"][name]
        rate = len(self.texts) / self.encode(name, "all", batch)
        times = self.workers[name]("latency", texts=short, batch=batch)["ms"]
        one[name] = {
            "texts_per_second": rate,
            "p50_ms": statistics.median(times),
            "p95_ms": float(np.percentile(times, 95)),
        }
        print(f"{name}: {rate:.0f} texts/s, one text {one[name]['p50_ms']:.2f} ms", flush=True)


def synthetic_texts_of(bundle, tokens, count):
    with Encoder.load(bundle, variant="fp32", providers="cpu") as encoder:
        return synthetic_texts(encoder, tokens, count, seed=99)


def cosine(found, expected):
    """Return the least cosine over all texts."""
    return float((found * expected).sum(axis=1).min())


def versions():
    found = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
    return {name: found[name] for name in PACKAGES if name in found}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path, help="with fp32, fp16 and fp16-cuda")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--o4", type=Path)
    parser.add_argument("--rival-python", type=Path)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=165, help="for all of it, about")
    parser.add_argument("--only", nargs="+", metavar="CONTENDER")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, default=Path("encoder.json"))
    arguments = parser.parse_args()
    os.environ["MIRROR_RT_BENCHMARK_DEVICE"] = arguments.device  # read by the workers
    benchmark = Benchmark(arguments)
    benchmark.run()
    return int(not any(name.startswith("mirror-rt") for name in benchmark.workers))


if __name__ == "__main__":
    sys.exit(main())
