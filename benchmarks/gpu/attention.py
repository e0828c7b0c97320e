"""Find the attention kernels that onnxruntime takes for a graph on a GPU.

python benchmarks/gpu/attention.py BUNDLE VARIANT [--cuda-graphs] --json RESULT

A process of its own encodes texts of several lengths, for which onnxruntime prints its kernels.
Ends with 1 where it prints none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import write_whole

from mirror_rt import Encoder
from mirror_rt.diagnostics.benchmarking import synthetic_texts

LENGTHS = (16, 128, 512)
CAPTURED = "captured"  # what is printed while the model loads


def encode(arguments: argparse.Namespace) -> None:
    """Encode texts of each length, 16 at a time, which is more than a captured shape holds."""
    with Encoder.load(
        arguments.bundle,
        variant=arguments.variant,
        providers=arguments.device,
        cuda_graphs=arguments.cuda_graphs,
    ) as encoder:
        for length in dict.fromkeys(min(n, encoder.max_length) for n in LENGTHS):
            print(f"{length} tokens, on {encoder.devices}", flush=True)
            texts = synthetic_texts(encoder, length, 16)
            encoder.encode(texts, batch_size=16, show_progress_bar=False)


def printed(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the kernels that onnxruntime printed, by the number of tokens."""
    found: dict[str, set[str]] = defaultdict(set)
    length = CAPTURED
    for line in lines:
        if tokens := re.match(r"(\d+) tokens, ", line):
            length = tokens[1]
        if kernel := re.search(r"Operator=.* SdpaKernel=(\w+)", line):
            found[length].add(kernel[1])
    return {length: sorted(kernels) for length, kernels in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("variant")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--encode", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.encode:
        encode(arguments)
        return 0
    command = [sys.executable, *sys.argv, "--encode"]
    environment = os.environ | {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        return done.returncode
    found = printed(done.stdout.splitlines())
    result = {"variant": arguments.variant, "printed": found}
    if arguments.json is not None:
        write_whole(arguments.json, json.dumps(result, indent=1))
    print(json.dumps(result))
    return int(arguments.device == "cuda" and not found)


if __name__ == "__main__":
    sys.exit(main())
