"""Measure two runs in flight on a card, and its memory under batches of many shapes.

    python benchmarks/gpu/soak.py BUNDLE [--variant fp16-cuda] [--seconds 45] [--device cpu]
                                  [--json FILE]

For a third of the time, calls with one run in flight and calls with two take turns over the same
texts. After that, threads encode batches of random numbers of texts of random lengths, the largest
possible one first, while the memory of the card (of this process, without a card) is sampled. An
arena that fragments grows with every new shape; one that does not keeps its size. The exit status
is 1 if the line fitted through the samples after the warm-up grows by more than --limit megabytes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.soak import growth_mb, resident_mb

from mirror_rt import Encoder
from mirror_rt.diagnostics.benchmarking import synthetic_texts
from mirror_rt.inference.shared_libraries import free_memory

LENGTHS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MOST_TEXTS = 256
CALLERS = 3
PERIOD = 0.05


class Soak:
    """The traffic, and the measurements meanwhile.

    Args:
        encoder: encoder to call.
        on_card: whether it runs on a card.
        most: texts of the largest batch.
    """

    def __init__(self, encoder: Encoder, *, on_card: bool, most: int) -> None:
        self.encoder, self.on_card, self.most = encoder, on_card, most
        lengths = LENGTHS if on_card else LENGTHS[:6]
        lengths = sorted({min(length, encoder.max_length) for length in lengths})
        self.texts = [synthetic_texts(encoder, length, most) for length in lengths]
        self.batches = 0

    def encode(self, texts: list[str]) -> None:
        # 64 tokens a text: everything is in one run, whatever its shape.
        size = len(texts) * max(1, self.encoder.max_length // 64)
        self.encoder.encode(texts, batch_size=size, show_progress_bar=False)

    def flights(self, seconds: float) -> dict[str, float]:
        """Return texts a second with one run in flight and with two, medians of turns."""
        texts = [text for texts in self.texts for text in texts[: self.most // 2]]
        random.Random(0).shuffle(texts)
        rates: dict[int, list[float]] = {1: [], 2: []}
        model = self.encoder.pipeline.model
        usual, until = model.parallel_runs, time.monotonic() + seconds
        while len(rates[2]) < 2 or time.monotonic() < until:
            for runs in rates:
                model.parallel_runs = runs
                began = time.monotonic()
                self.encoder.encode(texts, batch_size=MOST_TEXTS, show_progress_bar=False)
                rates[runs].append(len(texts) / (time.monotonic() - began))
        model.parallel_runs = usual
        return {f"{runs} in flight": statistics.median(of[1:]) for runs, of in rates.items()}

    def memory(self, seconds: float) -> tuple[list[float], list[float]]:
        """Return the seconds and the megabytes of the samples, taken under traffic."""
        self.encode(self.texts[-1])
        stop = threading.Event()
        callers = [threading.Thread(target=self._call, args=(stop, i)) for i in range(CALLERS)]
        for caller in callers:
            caller.start()
        began, times, megabytes = time.monotonic(), [], []
        while time.monotonic() < began + seconds and all(caller.is_alive() for caller in callers):
            times.append(time.monotonic() - began)
            megabytes.append(self._used_mb())
            time.sleep(PERIOD)
        failed = not all(caller.is_alive() for caller in callers)
        stop.set()
        for caller in callers:
            caller.join()
        if failed:
            sys.exit("a call failed: its error is above")
        return times, megabytes

    def _call(self, stop: threading.Event, seed: int) -> None:
        generator = random.Random(seed)
        while not stop.is_set():
            count = generator.randint(1, self.most)
            self.encode(generator.choice(self.texts)[:count])
            self.batches += 1

    def _used_mb(self) -> float:
        free = free_memory(0) if self.on_card else None
        return resident_mb() if free is None else -free / 2**20  # up to a constant


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--variant", default="fp16-cuda")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--limit", type=float, default=64, metavar="MB")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    on_card = arguments.device == "cuda"
    variant = arguments.variant if on_card else "fp32"
    with Encoder.load(arguments.bundle, variant=variant, providers=arguments.device) as encoder:
        soak = Soak(encoder, on_card=on_card, most=MOST_TEXTS if on_card else 8)
        rates = soak.flights(arguments.seconds / 3)
        times, megabytes = soak.memory(arguments.seconds * 2 / 3)
    found = {
        "texts_per_second": rates,
        "growth_mb": growth_mb(times, megabytes),
        "limit_mb": arguments.limit,
        "range_mb": max(megabytes) - min(megabytes),
        "batches": soak.batches,
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found), encoding="utf-8")
    print(json.dumps(found, indent=1))
    return int(not found["growth_mb"] <= arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
