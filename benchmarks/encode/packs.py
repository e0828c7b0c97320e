"""Check that twelve languages can be served in the memory of three.

    python benchmarks/encode/packs.py --bundle BUNDLE --work FOLDER [--requests 400] [--threads 2]

The script makes a pack of twelve copies of a bundle, each with files of its own, and serves the
same requests from it three times, in a new process each: for three of the languages, for all
twelve, and for all twelve with the memory limit of three. A request is one text in one language,
from one of several threads; the languages are drawn by Zipf's law, as traffic is uneven. Memory is
that of the whole process, at its peak (VmHWM), and at the end as proportional share (PSS); the
growth is that of the PSS since before the pack was loaded.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from mirror_rt import LanguagePack
from mirror_rt.bundle.pack_index import PackedBundle, PackIndex
from mirror_rt.io.tables import markdown_table

LANGUAGES = ["en", "fr", "ru", "zh", "ar", "es", "pt", "de", "it", "pl", "fi", "he"]
TEXT = "All human beings are born free and equal in dignity and rights."


def make_pack(bundle, folder):
    """Make copies, not links, so that languages share nothing, not even in memory."""
    if folder.exists():
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for language in LANGUAGES:
        shutil.copytree(bundle, partial / language)
        path = partial / language / "mirror.json"
        values = json.loads(path.read_text(encoding="utf-8")) | {"language": language}
        path.write_text(json.dumps(values), encoding="utf-8")
    entries = {name: PackedBundle.describe(partial, name, {}) for name in LANGUAGES}
    PackIndex(entries, default="en").write(partial)
    partial.rename(folder)


def memory(field, file="status"):
    for line in Path(f"/proc/self/{file}").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def draw(languages, count, seed):
    weights = [1 / rank for rank in range(1, len(languages) + 1)]
    return random.Random(seed).choices(languages, weights, k=count)


def serve(folder, languages, limited, requests, threads):
    """Serve in this process; print figures as JSON."""
    import onnxruntime  # noqa: F401  # its own memory is not the pack's

    before = memory("Pss", "smaps_rollup")
    with LanguagePack.load(folder) as pack:
        pack.encode(TEXT)
        size = pack.statistics.bytes
    pack = LanguagePack.load(folder, memory_limit=3 * size if limited else None, threads=1)
    latencies = []

    def work(seed):
        for language in draw(languages, requests // threads, seed):
            began = time.perf_counter()
            pack.encode(TEXT, lang=language)
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - began
    latencies.sort()
    stats = pack.statistics
    print(json.dumps({
        "requests": len(latencies),
        "loaded": len(stats.loaded),
        "counted_mb": stats.bytes / 1e6,
        "peak_mb": memory("VmHWM") / 1e6,
        "end_mb": memory("Pss", "smaps_rollup") / 1e6,
        "growth_mb": (memory("Pss", "smaps_rollup") - before) / 1e6,
        "hits": stats.hits,
        "loads": stats.loads,
        "evictions": stats.evictions,
        "requests_per_second": len(latencies) / seconds,
        "median_ms": 1e3 * latencies[len(latencies) // 2],
        "p95_ms": 1e3 * latencies[int(0.95 * len(latencies))],
    }))  # fmt: skip


def measure(folder, languages, limited, arguments):
    """Call `serve` in a process of its own and return its figures."""
    line = [sys.executable, __file__, "--serve", ",".join(languages), "--work", folder.parent,
            "--requests", arguments.requests, "--threads", arguments.threads]  # fmt: skip
    line += ["--limited"] if limited else []
    done = subprocess.run(
        list(map(str, line)), check=True, stdout=subprocess.PIPE, encoding="utf-8"
    )
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--limited", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.work / "pack"
    if arguments.serve:
        languages = arguments.serve.split(",")
        serve(folder, languages, arguments.limited, arguments.requests, arguments.threads)
        return
    if arguments.bundle is None:
        parser.error("--bundle is needed")
    make_pack(arguments.bundle, folder)
    results = {
        "three languages": measure(folder, LANGUAGES[:3], False, arguments),
        "twelve": measure(folder, LANGUAGES, False, arguments),
        "twelve in the memory of three": measure(folder, LANGUAGES, True, arguments),
    }
    names = list(next(iter(results.values())))
    rows = [[title, *(f"{one:.4g}" for one in found.values())] for title, found in results.items()]
    print(markdown_table(["", *names], rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
