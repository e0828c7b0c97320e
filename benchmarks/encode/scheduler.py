"""Measure the scheduler's cost when idle, and its rate with many callers against one call.

python benchmarks/encode/scheduler.py BUNDLE --texts FILE [--callers 64] [--rounds 5]

Rounds alternate between the two sides; medians are printed. FILE holds one text per line.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from pathlib import Path

from mirror_rt import Encoder, Scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--texts", required=True)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant")
    arguments = parser.parse_args()
    texts = Path(arguments.texts).read_text(encoding="utf-8").splitlines()[: arguments.count]
    encoder = Encoder.load(arguments.bundle, variant=arguments.variant)
    encoder.encode(texts)
    with Scheduler(encoder) as scheduler:
        idle(encoder, scheduler, arguments.rounds)
    with Scheduler(encoder) as scheduler:
        loaded(encoder, scheduler, texts, arguments.callers, arguments.rounds)


def idle(encoder: Encoder, scheduler: Scheduler, rounds: int) -> None:
    """Measure how much longer one caller with one short text waits through the scheduler."""
    direct, scheduled = [], []
    for _ in range(rounds * 100):
        for call, seconds in ((encoder.encode, direct), (scheduler.encode, scheduled)):
            began = time.perf_counter()
            call("one short text")
            seconds.append(time.perf_counter() - began)
    one, other = (statistics.median(taken) * 1e6 for taken in (direct, scheduled))
    print(
        f"one text, nobody else: encode {one:.0f} us, Scheduler.encode {other:.0f} us, "
        f"difference {other - one:+.0f} us"
    )


def loaded(
    encoder: Encoder, scheduler: Scheduler, texts: list[str], callers: int, rounds: int
) -> None:
    """Measure the same texts all in one call, in one call each, and from many callers."""
    sides = {
        "offline, one call": lambda: encoder.encode(texts),
        "one at a time": lambda: [encoder.encode(text) for text in texts],
        f"{callers} threads": lambda: from_threads(scheduler, texts, callers),
        f"{callers} tasks": lambda: asyncio.run(from_tasks(scheduler, texts, callers)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    offline = medians["offline, one call"]
    for name, median in medians.items():
        print(f"{name}: {len(texts) / median:.0f} texts/s, {offline / median:.2f} of offline")
    counts = scheduler.statistics()
    print(f"{counts.texts_per_batch:.1f} texts a batch, {counts.padding:.1%} padding")


def from_threads(scheduler: Scheduler, texts: list[str], callers: int) -> None:
    """Encode the texts from threads; each encodes its share, one text per call."""

    def work(start: int) -> None:
        for text in texts[start::callers]:
            scheduler.encode(text)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def from_tasks(scheduler: Scheduler, texts: list[str], callers: int) -> None:
    """Encode the texts from tasks; each encodes its share, one text per call."""

    async def work(start: int) -> None:
        for text in texts[start::callers]:
            await scheduler.aencode(text)

    await asyncio.gather(*(work(start) for start in range(callers)))


if __name__ == "__main__":
    main()
