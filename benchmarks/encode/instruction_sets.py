"""Compare the native engine, held to an instruction set, with onnxruntime, on one thread.

    python benchmarks/encode/instruction_sets.py BUNDLE --data DATA [--isa avx2] [--rounds 7] \
        [--texts 512]

The sides take turns with 24 texts each, and with single short texts. What counts is the processor's
time, which other programs change less than the clock's; a ratio is the median of those of a turn.
BUNDLE has an fp32 and an int8 graph. onnxruntime itself takes no less than the processor has: to
compare with it on AVX2, name in PYTHONPATH the folder of a copy in whose library the instruction
`xgetbv` is replaced with `push 7; pop rax` (6a 07 58), which says that there is no AVX-512. Where
the processor has AVX-VNNI, also replace `cpuid; test al, 16` (0f a2 a8 10) with 0f a2 a8 00, or
onnxruntime takes that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
from texts import select_texts

from mirror_rt import Encoder, _core
from mirror_rt.inference.native import runner
from mirror_rt.inference.native.kernel_choice import Kernels, kernels_for
from mirror_rt.io.tables import markdown_table

TURN = 24


def native(
    bundle: str,
    variant: str,
    isa: str,
    *,
    threads: int = 1,
    load: Callable[..., Any] = Encoder.load,
) -> Any:
    """Load a bundle into the engine, held to an instruction set."""
    runner.kernels_for = lambda precision: Kernels(precision, isa)
    try:
        return load(bundle, providers="native", variant=variant, threads=threads)
    finally:
        runner.kernels_for = kernels_for


def measure(sides: dict[str, Encoder], turns: list[list[str]]) -> dict[str, list[float]]:
    """Return the seconds of each side's turns."""
    seconds = {name: [] for name in sides}
    for texts in turns:
        for name, encoder in sides.items():
            began = time.process_time()
            encoder.encode(texts)
            seconds[name].append(time.process_time() - began)
    return seconds


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--isa", default="avx2", choices=_core.engine_instruction_sets())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--texts", type=int, default=512, help="of each kind, at least 96")
    args = parser.parse_args()
    sides = {}
    for variant in ("fp32", "int8"):
        sides[f"onnxruntime {variant}"] = Encoder.load(
            args.bundle, providers="cpu", variant=variant, threads=1
        )
        sides[f"native {variant}, {args.isa}"] = native(args.bundle, variant, args.isa)
    kinds = select_texts(args.data, args.texts)
    exact = next(iter(sides.values())).encode(kinds["mixed"] + kinds["short"])
    cosines = {
        name: (encoder.encode(kinds["mixed"] + kinds["short"]) * exact).sum(axis=1)
        for name, encoder in sides.items()
    }
    turns = {
        kind: [texts[i : i + TURN] for i in range(0, 4 * TURN, TURN)] * args.rounds
        for kind, texts in kinds.items()
    } | {"one short text": [[text] for text in kinds["short"][:TURN]] * args.rounds}
    seconds = {kind: measure(sides, lists) for kind, lists in turns.items()}
    print(f"onnxruntime {onnxruntime.__version__} of {Path(onnxruntime.__file__).parent}\n")
    heads = [f"{kind}, ms, rate of onnxruntime's fp32" for kind in seconds]
    rows = []
    for name in sides:
        cells = []
        for of in seconds.values():
            base = of[next(iter(sides))]
            ratio = statistics.median(b / s for b, s in zip(base, of[name], strict=True))
            cells.append(f"{statistics.median(of[name]) * 1e3:.2f}, {ratio:.2f}")
        found = cosines[name]
        rows.append([name, *cells, f"{found.mean():.5f}", f"{found.min():.5f}"])
    header = ["one thread", *heads, "mean cosine", "least"]
    print(markdown_table(header, rows, numbers=True))


if __name__ == "__main__":
    main()
