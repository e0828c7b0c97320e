"""Measure the contenders of compare.py: agreement, batch sizes, rounds, cold starts.

Every contender is a process that takes its orders by line (benchmarks/encode/worker.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np
from encode.setup import (
    CONTENDERS,
    OWN_PACKAGES,
    WORKER,
    LeftOutError,
    fingerprint,
    model_of,
    python_of,
)
from encode.texts import select_texts
from helpers import write_whole

REFERENCES = ("sentence-transformers torch", "onnxruntime sketch", "mirror-rt fp32")
SETS = ("mixed", "short")


class Worker:
    """A contender's process."""

    def __init__(self, name, python, folder, threads, *first, script=WORKER):
        self.name = name
        line = [str(python), str(script), name, str(folder), str(threads), *first]
        variables = {
            "OMP_NUM_THREADS": str(threads),
            "RAYON_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "true",
            "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore",
            **OWN_PACKAGES,
        }
        began = time.perf_counter()
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # open as long as the process
        self.process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, encoding="utf-8",
            env=os.environ | variables, cwd="/",
        )  # fmt: skip
        self._answer()
        self.seconds_to_ready = time.perf_counter() - began

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise LeftOutError(f"it ended with {self.process.returncode}: {self._last_words()}")
        return json.loads(line)

    def _last_words(self):
        self.log.seek(0)
        lines = [line for line in self.log.read().splitlines() if line.strip()]
        return lines[-1][-300:] if lines else "without a word"

    def __call__(self, do, **order):
        self.process.stdin.write(json.dumps({"do": do} | order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


class Benchmark:
    """The steps of the benchmark; each stores its results in `state`, and is then not repeated."""

    def __init__(self, arguments):
        self.a = arguments
        self.cache = arguments.cache
        self.cache.mkdir(parents=True, exist_ok=True)
        self.state_file = self.cache / ("quick.json" if arguments.quick else "full.json")
        self.state = self._read_state()
        self.workers, self.places = {}, {}
        texts = select_texts(arguments.data, 120 if arguments.quick else 1500)
        self.texts = texts
        for name, values in texts.items():
            (self.cache / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")

    def _read_state(self):
        plan = {
            "threads": self.a.threads,
            "rounds": self.a.rounds,
            "project": fingerprint(),
            "bundle": str(self.a.bundle),
            "contenders": self.a.only or list(CONTENDERS),
        }
        if self.state_file.is_file() and not self.a.fresh:
            state = json.loads(self.state_file.read_text(encoding="utf-8"))
            if state["plan"] == plan:
                print(f"going on with {self.state_file} (--fresh begins anew)")
                return state | {"left_out": {}}  # they get another chance
        keys = ("left_out", "agreement", "batch", "cold", "memory", "callers")
        return {"plan": plan, "rounds": []} | {key: {} for key in keys}

    def save(self):
        write_whole(self.state_file, json.dumps(self.state, indent=1))

    def run(self):
        self.start_all()
        self.compare_vectors()
        self.search_batches()
        self.take_turns()
        self.call_concurrently()
        for worker in self.workers.values():
            worker.close()
        self.start_cold()
        self.measure_memory()

    @contextlib.contextmanager
    def or_left_out(self, name):
        try:
            yield
        except (LeftOutError, BrokenPipeError, json.JSONDecodeError) as error:
            print(f"  {name} is left out: {error}", flush=True)
            self.state["left_out"][name] = str(error)
            self.workers.pop(name, None)
            self.save()

    def start_all(self):
        print("environments and models", flush=True)
        for name in self.state["plan"]["contenders"]:
            contender = CONTENDERS[name]
            with self.or_left_out(name):
                python = python_of(self.cache, contender.environment)
                folder = model_of(self.cache, contender.model, self.a.bundle)
                place = (python, folder, self.a.threads)
                self.workers[name] = Worker(name, *place)
                self.places[name] = place

    def encode(self, name, texts, batch, **order):
        file = str(self.cache / f"{texts}.json")
        return self.workers[name]("encode", texts=file, batch=batch, **order)

    def compare_vectors(self):
        """Compare all vectors with the reference's; this also warms every contender up."""
        print("vectors", flush=True)
        reference = next(name for name in REFERENCES if name in self.workers)
        expected = self.vectors(reference)
        for name in list(self.workers):
            with self.or_left_out(name):
                got = expected if name == reference else self.vectors(name)
                # Vectors that were normalised in bfloat16 are not quite unit vectors.
                lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
                cosines = (got * expected).sum(axis=1) / lengths
                found = {
                    "least_cosine": float(cosines.min()),
                    "mean_cosine": float(cosines.mean()),
                    "largest_difference": float(np.abs(got - expected).max()),
                }
                print(f"  {name:<28} least cosine {found['least_cosine']:.6f}, "
                      f"mean {found['mean_cosine']:.6f}")  # fmt: skip
                self.state["agreement"][name] = found
                enough = ("least", 0.9999) if CONTENDERS[name].exact else ("mean", 0.98)
                if not found[f"{enough[0]}_cosine"] >= enough[1]:
                    raise LeftOutError(f"its vectors are others: {found}")
        self.state["reference"] = reference
        self.save()

    def vectors(self, name):
        out = self.cache / "vectors.npy"
        parts = []
        for texts in SETS:
            batch = self.workers[name]("batches")["batches"][2]
            self.encode(name, texts, batch, out=str(out))
            parts.append(np.load(out))
        return np.concatenate(parts)

    def search_batches(self):
        print("best batch sizes", flush=True)
        every = 1 if self.a.quick else 5
        for name in list(self.workers):
            if name in self.state["batch"]:
                continue
            with self.or_left_out(name):
                candidates = self.workers[name]("batches")["batches"]
                best = {}
                for texts in SETS:
                    seconds = {
                        batch: min(
                            self.encode(name, texts, batch, every=every)["seconds"]
                            for _ in range(1 if self.a.quick else 3)
                        )
                        for batch in candidates
                    }
                    best[texts] = min(seconds, key=seconds.get)
                print(f"  {name:<28} {best}", flush=True)
                self.state["batch"][name] = best
                self.save()

    def take_turns(self):
        for turn in range(len(self.state["rounds"]), self.a.rounds):
            print(f"round {turn + 1} of {self.a.rounds}", flush=True)
            names = list(self.workers)
            shift = turn % len(names)
            found = {}
            for name in names[shift:] + names[:shift]:
                with self.or_left_out(name):
                    found[name] = self.one_turn(name)
            self.state["rounds"].append(found)
            self.save()

    def one_turn(self, name):
        found = {}
        for texts in SETS:
            done = self.encode(name, texts, self.state["batch"][name][texts])
            found[texts] = done["texts"] / done["seconds"]
        some = self.texts["short"][: 30 if self.a.quick else 200]
        times = self.workers[name]("latency", texts=some, batch=self.state["batch"][name]["short"])[
            "ms"
        ]
        found["p50_ms"] = statistics.median(times)
        found["p95_ms"] = float(np.percentile(times, 95))
        print(f"  {name:<28}{found['mixed']:>9.1f} mixed{found['short']:>9.1f} short texts/s"
              f"{found['p50_ms']:>9.2f} ms", flush=True)  # fmt: skip
        return found

    def call_concurrently(self):
        """Measure 64 concurrent callers of one text each, ours only: others have no scheduler."""
        name = "mirror-rt fp32"
        if name not in self.workers or self.state["callers"]:
            return
        print("64 concurrent callers", flush=True)
        order = {"texts": str(self.cache / "mixed.json"), "callers": 64,
                 "batch": self.state["batch"][name]["mixed"]}  # fmt: skip
        for _ in range(1 if self.a.quick else 3):
            for key, scheduled in (("encode", False), ("scheduler", True)):
                with self.or_left_out(name):
                    done = self.workers[name]("callers", scheduled=scheduled, **order)
                    if "left_out" in done:
                        print(f"  {key} is skipped: {done['left_out']}")
                        continue
                    offline = self.encode(name, "mixed", order["batch"])
                    ratio = done["texts_per_second"] * offline["seconds"] / offline["texts"]
                    self.state["callers"].setdefault(key, []).append(
                        {
                            "texts_per_second": done["texts_per_second"],
                            "of_offline": ratio,
                            "p50_ms": statistics.median(done["ms"]),
                            "p95_ms": float(np.percentile(done["ms"], 95)),
                        }
                    )
        self.save()

    def start_cold(self):
        """Measure from the start of a process to its first vector, with files in the page cache."""
        print("cold starts", flush=True)
        for _ in range(2 if self.a.quick else 7):
            for name in list(self.workers):
                with self.or_left_out(name):
                    worker = Worker(name, *self.places[name], self.texts["short"][0])
                    worker.close()
                    self.state["cold"].setdefault(name, []).append(worker.seconds_to_ready)
        self.save()

    def measure_memory(self):
        """Measure the peak of a fresh process that encodes mixed texts at its best batch size."""
        print("memory", flush=True)
        for name in list(self.workers):
            with self.or_left_out(name):
                worker = self.workers[name] = Worker(name, *self.places[name])
                self.encode(name, "mixed", self.state["batch"][name]["mixed"])
                self.state["memory"][name] = worker("peak")["peak_mb"]
                worker.close()
        self.save()
