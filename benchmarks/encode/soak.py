"""Send a day's traffic in miniature, over which memory must stay flat.

    python benchmarks/encode/soak.py BUNDLE [--minutes 20] [--out FOLDER]

Bursts and idle gaps take turns. A burst has texts from a word to the length limit, from several
threads and tasks, one at a time and in lists, through `Encoder.encode`, `aencode`, `encode_iter`
and a `Scheduler`; some texts cannot be encoded, and some calls are cancelled or run into a timeout.
The resident memory is sampled four times a second. After a third of the time, the warm-up, a line
is fitted through the samples by least squares; the growth along it must stay below --limit
megabytes (default 8, which a burst of long texts takes and gives back). The results are written to
soak.json and, with matplotlib, soak.png; the exit status is 1 if memory grows, or a call ends
unexpectedly.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from mirror_rt import DeadlineError, Encoder, InvalidTextError, OverloadedError, Scheduler
from mirror_rt.diagnostics.benchmarking import machine_name

WORDS = ["river", "road", "town", "word", "people", "house", "water", "light", "old", "slow"]
BAD = (None, "", " \n", "\ud800", b"bytes", 7)
CALLERS = 4
PERIOD = 0.25
WARM_UP = 1 / 3


def main() -> int:
    arguments = parse()
    seconds = arguments.minutes * 60
    sampler = Sampler(seconds)
    with Encoder.load(arguments.bundle, threads=arguments.threads) as encoder:
        encoder.warmup()
        sampler.start()
        traffic = Traffic(encoder, arguments.seed, arguments.idle)
        traffic.run(time.monotonic() + seconds)
        sampler.stop.set()
        sampler.join()
    growth = growth_mb(sampler.times, sampler.megabytes)
    report = {
        "bundle": arguments.bundle,
        "machine": machine_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": arguments.minutes,
        "processor_seconds": round(time.process_time(), 1),
        "counts": dict(traffic.counts),
        "growth_mb": round(growth, 2),
        "limit_mb": arguments.limit,
        "flat": growth <= arguments.limit,
        "seconds": [round(t, 2) for t in sampler.times],
        "resident_mb": [round(mb, 2) for mb in sampler.megabytes],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "soak.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    plot(report, arguments.out / "soak.png")
    verdict = "flat" if report["flat"] else f"MEMORY GROWS (more than {arguments.limit} MB)"
    print(
        f"{verdict}: {growth:+.1f} MB along the fitted line, {report['resident_mb'][-1]:.0f} MB at "
        f"the end, {traffic.counts['texts']} texts in {seconds:.0f} s: {arguments.out}/soak.json"
    )
    if traffic.unexpected:
        print(f"unexpected: {traffic.unexpected[:3]}")
    return int(not report["flat"] or bool(traffic.unexpected))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--limit", type=float, default=8, metavar="MB")
    parser.add_argument("--idle", type=float, default=1, help="seconds idle for each busy second")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("soak"))
    return parser.parse_args()


class Sampler(threading.Thread):
    """Samples the resident memory of this process every quarter of a second."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        # Room for all samples is allocated at once, as a growing list would make the process grow.
        self._room = np.zeros((2, int(seconds / PERIOD) + 4096))
        self._room += 1e-9  # writing makes the pages resident
        self._count = 0

    @property
    def times(self) -> np.ndarray:
        return self._room[0, : self._count]

    @property
    def megabytes(self) -> np.ndarray:
        return self._room[1, : self._count]

    def run(self) -> None:
        began = time.monotonic()
        while not self.stop.wait(PERIOD) and self._count < self._room.shape[1]:
            self._room[:, self._count] = time.monotonic() - began, resident_mb()
            self._count += 1


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def growth_mb(times, megabytes) -> float:
    """Return the growth along the fitted line, from the end of the warm-up to the end."""
    times, megabytes = np.asarray(times), np.asarray(megabytes)
    kept = times >= times[-1] * WARM_UP
    if kept.sum() < 8:
        raise SystemExit("too short: give it more minutes")
    slope = np.polyfit(times[kept], megabytes[kept], 1)[0]
    return float(slope * np.ptp(times[kept]))


class Traffic:
    """Bursts of calls of every kind, and idle gaps between them.

    Args:
        encoder: encoder to call.
        seed: seed of the random choice of calls and texts.
        idle: seconds of idling for each second of work.
    """

    def __init__(self, encoder: Encoder, seed: int, idle: float) -> None:
        self.encoder = encoder
        self.counts: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self._idle = idle
        self._generator = random.Random(seed)
        self._lock = threading.Lock()

    def run(self, until: float) -> None:
        """Send bursts until the time `until`."""
        with Scheduler(self.encoder, max_waiting_texts=512) as scheduler:
            while time.monotonic() < until:
                began = time.monotonic()
                self._burst(scheduler)
                busy = time.monotonic() - began
                time.sleep(max(0.0, min(busy * self._idle, until - time.monotonic())))

    def _burst(self, scheduler: Scheduler) -> None:
        """Let all callers make some calls at the same time; then let some tasks do so."""
        seeds = [self._generator.getrandbits(32) for _ in range(CALLERS + 1)]
        threads = [
            threading.Thread(target=self._caller, args=(scheduler, random.Random(seed)))
            for seed in seeds[1:]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asyncio.run(self._tasks(scheduler, random.Random(seeds[0])))
        self._count(bursts=1)

    def _caller(self, scheduler: Scheduler, generator: random.Random) -> None:
        kinds = [self._one, self._many, self._bad, self._stream, self._cancelled, self._late]
        for kind in generator.choices(kinds, weights=[6, 2, 2, 1, 2, 1], k=6):
            try:
                kind(scheduler, generator)
            except Exception as error:  # noqa: BLE001 - reported at the end
                self._fail(kind.__name__, error)

    def _one(self, scheduler: Scheduler, generator: random.Random) -> None:
        vector = scheduler.encode(self._text(generator))
        self._check(np.isfinite(vector).all())
        self._count(texts=1)

    def _many(self, scheduler: Scheduler, generator: random.Random) -> None:
        texts = [self._text(generator) for _ in range(generator.randrange(2, 24))]
        vectors = self.encoder.encode(texts, show_progress_bar=False)
        self._check(np.isfinite(vectors).all())
        self._count(texts=len(texts))

    def _bad(self, scheduler: Scheduler, generator: random.Random) -> None:
        texts = [self._text(generator), generator.choice(BAD), self._text(generator)]
        vectors = self.encoder.encode(texts, errors="nan", show_progress_bar=False)
        self._check(np.isnan(vectors).all(axis=1).tolist() == [False, True, False])
        try:
            scheduler.encode(texts)
            self._check(False)
        except InvalidTextError:
            self._count(texts=2, refused=2)

    def _stream(self, scheduler: Scheduler, generator: random.Random) -> None:
        texts = (self._text(generator) for _ in range(40))
        self._count(texts=sum(1 for _ in self.encoder.encode_iter(texts, window=16)))

    def _cancelled(self, scheduler: Scheduler, generator: random.Random) -> None:
        futures = [scheduler.submit(self._text(generator)) for _ in range(4)]
        for future in futures[1:]:
            future.cancel()
        futures[0].result()
        self._count(texts=1, cancelled=3)

    def _late(self, scheduler: Scheduler, generator: random.Random) -> None:
        try:
            scheduler.encode([self._text(generator) for _ in range(8)], timeout=1e-4)
        except (DeadlineError, OverloadedError):
            self._count(late=8)

    async def _tasks(self, scheduler: Scheduler, generator: random.Random) -> None:
        tasks = [
            asyncio.create_task(scheduler.aencode(self._text(generator))) for _ in range(12)
        ] + [asyncio.create_task(self.encoder.aencode(self._text(generator))) for _ in range(6)]
        await asyncio.sleep(0)
        for task in tasks[:3]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        self._check(all(isinstance(r, np.ndarray | asyncio.CancelledError) for r in done))
        self._count(texts=len(tasks) - 3, cancelled=3)

    def _text(self, generator: random.Random) -> str:
        """Return a text: mostly short, some of the greatest length, a few of 100,000 characters."""
        if generator.random() < 0.01:
            return "word " * 20_000
        longest = self.encoder.max_length
        count = min(longest, max(1, int(generator.lognormvariate(2.2, 1.1))))
        return " ".join(generator.choices(WORDS, k=count))

    def _check(self, well: bool) -> None:
        if not well:
            raise RuntimeError("a wrong result")

    def _fail(self, name: str, error: Exception) -> None:
        with self._lock:
            if len(self.unexpected) < 8:
                self.unexpected.append(f"{name}: {type(error).__name__}: {error}")
            self.counts["unexpected"] += 1

    def _count(self, **counts: int) -> None:
        with self._lock:
            self.counts.update(counts)


def plot(report, path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.plot(np.divide(report["seconds"], 60), report["resident_mb"], linewidth=0.7)
    axes.axvline(report["seconds"][-1] / 60 * WARM_UP, color="grey", linestyle=":")
    axes.set(xlabel="minutes", ylabel="resident MB", ylim=(0, None))
    axes.set_title(f"{report['counts']['texts']} texts, growth {report['growth_mb']:+.1f} MB")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
