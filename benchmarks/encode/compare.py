"""Compare this project's encoder with others, in one run on one machine.

    python benchmarks/encode/compare.py --data DATA [--bundle BUNDLE] [--quick] [--docs]

The contenders are this project in fp32 and int8 on onnxruntime, and in fp32, bf16 and int8 on each
of its other engines; sentence-transformers with PyTorch, in fp32 and bfloat16, and with its ONNX
and OpenVINO backends; fastembed; light-embed; CTranslate2 in float32 and int8; llama.cpp in f32,
f16 and q8_0; and forty lines of onnxruntime on this project's graph. Each runs in a process and an
environment of its own, which the script makes in --cache and keeps; the script itself does, too, so
nothing needs to be installed, and nothing that is installed takes part. All have the model
all-MiniLM-L6-v2, the same texts and the same processors.

First all vectors are compared; a contender whose vectors disagree is left out, with the reason, and
so is one that cannot be installed or started.
Then each gets the batch size that is best for it, and they take turns: all mixed texts, all short
texts, one text at a time. Cold starts and memory are measured on fresh processes. The script prints
medians over the rounds, and ratios as medians of the ratios in each round. An interrupted run
continues where it stopped, unless --fresh is given. The results are written to
benchmarks/results/encode-DATE-MACHINE .json, .md and .png; --docs also puts the table into
docs/guides/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.setup import CONTENDERS, ROOT, continue_in, processor_class


def confine(threads):
    """Confine this process and its children to the first `threads` processors."""
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        sys.exit(f"--threads {threads}: this process may use {len(allowed)} processors")
    os.sched_setaffinity(0, allowed[:threads])


def arguments_of_command():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the evaluation data")
    parser.add_argument("--bundle", type=Path, help="default: exported by the script")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="few texts: to try the script")
    parser.add_argument("--fresh", action="store_true", help="forget an interrupted run")
    parser.add_argument(
        "--docs", action="store_true", help="put the table into docs/guides/benchmarks.md"
    )
    default = Path.home() / ".cache" / "mirror_rt" / "benchmarks"
    parser.add_argument("--cache", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 7)
    arguments.cache = arguments.cache.resolve()
    arguments.bundle = arguments.bundle and arguments.bundle.resolve()
    return arguments


def main():
    arguments = arguments_of_command()
    continue_in(arguments.cache, "driver")
    from encode.report import write_report
    from encode.rounds import Benchmark

    from mirror_rt.diagnostics.benchmarking import machine_name

    confine(arguments.threads)
    benchmark = Benchmark(arguments)
    benchmark.run()
    about = {
        "machine": machine_name(),
        "class": processor_class(),
        "threads": arguments.threads,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python benchmarks/encode/compare.py " + " ".join(sys.argv[1:]),
        "texts": {name: len(texts) for name, texts in benchmark.texts.items()},
    }
    docs = ROOT / "docs/guides/benchmarks.md" if arguments.docs else None
    write_report(arguments.out, about, benchmark.state, docs)


if __name__ == "__main__":
    main()
