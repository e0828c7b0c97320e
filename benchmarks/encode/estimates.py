"""Estimate by llvm-mca which share of a processor's products the inner loops reach.

    python benchmarks/encode/estimates.py --out FILE.md [--measure]

Each kernel is compiled as for a wheel, into --work (remove it where csrc/ has changed). Of its
loops that one is taken which holds the most products, that of the largest register tile. llvm-mca
knows the units of a processor, and has every load in the first cache; the processor's best is a
block of products that wait for nothing. With --measure the kernels of this machine are run, beside
products that wait for nothing, for what the estimate is off by. Needs llvm-mca (apt-get install
llvm-19) and zig (bash tests/run.sh --all).
"""

from __future__ import annotations

import argparse
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 200
OPTIONS = ["-std=c++17", "-O3", "-DNDEBUG", "-ffp-contract=fast", "-fno-sanitize=all",
           f"-I{ROOT}/csrc"]  # fmt: skip
AVX512 = ["-mfma", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]


@dataclass(frozen=True)
class Product:
    """An instruction: its name with {} for the sum, and how many products it adds."""

    name: str
    line: str
    products: int


FMLA = Product("fmla", "fmla v{}.4s, v30.4s, v31.4s", 4)
BFMMLA = Product("bfmmla", "bfmmla v{}.4s, v30.8h, v31.8h", 16)
SDOT = Product("sdot", "sdot v{}.4s, v30.16b, v31.16b", 16)
SMMLA = Product("smmla", "smmla v{}.4s, v30.16b, v31.16b", 32)
FMA = Product("vfmadd", "vfmadd231ps %zmm30, %zmm31, %zmm{}", 16)
DPBF16 = Product("vdpbf16ps", "vdpbf16ps %zmm30, %zmm31, %zmm{}", 32)
DPBUSD = Product("vpdpbusd", "vpdpbusd %zmm30, %zmm31, %zmm{}", 64)

# Work of loops that are not of products alone: conversions, exponentials.
OTHER = re.compile(r"shl|fadd|fsub|fmul|vaddps|vsubps|vmulps|vpslld")

# Source and flags of a kernel, by the name of its instruction set.
KERNELS = {
    "neon_dot": ("engine/kernels_neon_dot", ["-mcpu=generic+v8_2a+dotprod"]),
    "neon_i8mm": ("engine/kernels_neon_i8mm", ["-mcpu=generic+v8_2a+dotprod+i8mm+bf16"]),
    "loss, portable": ("infonce/cpu/tile_portable", ["-mcpu=generic+v8a"]),
    "avx512_bf16": ("engine/kernels_avx512_bf16", [*AVX512, "-mavx512vnni", "-mavx512bf16"]),
    "loss, avx512": ("infonce/cpu/tile_avx512", AVX512),
    "loss, avx512_bf16": ("infonce/cpu/tile_avx512_bf16", [*AVX512, "-mavx512bf16"]),
}
DOT = [("fp32", "neon_dot", FMLA), ("int8", "neon_dot", SDOT), ("loss", "loss, portable", FMLA)]
I8MM = [("fp32", "neon_i8mm", FMLA), ("bf16", "neon_i8mm", BFMMLA), ("int8", "neon_i8mm", SMMLA),
        ("loss", "loss, portable", FMLA)]  # fmt: skip
X86 = [("fp32", "avx512_bf16", FMA), ("bf16", "avx512_bf16", DPBF16),
       ("int8", "avx512_bf16", DPBUSD), ("loss", "loss, avx512", FMA),
       ("loss, bf16", "loss, avx512_bf16", DPBF16)]  # fmt: skip
PROCESSORS = {"apple-m1": DOT, "neoverse-n1": DOT, "neoverse-v1": I8MM, "neoverse-v2": I8MM,
              "znver4": X86, "sapphirerapids": X86}  # fmt: skip


def compiled(zig: Path, kernel: str, folder: Path) -> str:
    """Return a kernel, compiled as for a wheel, in assembly."""
    source, flags = KERNELS[kernel]
    out = folder / f"{Path(source).name}.o"
    target = "aarch64-linux-musl" if "-mcpu" in flags[0] else "x86_64-linux-musl"
    line = [zig, "c++", "-target", target, *OPTIONS, *flags, "-c", "-o", out]
    if not out.exists():
        subprocess.run([*map(str, line), str(ROOT / "csrc" / f"{source}.cpp")], check=True)
    shown = ["llvm-objdump-19", "-d", "--no-show-raw-insn", str(out)]
    return subprocess.run(shown, check=True, capture_output=True, encoding="utf-8").stdout


def loops(assembly: str) -> list[list[str]]:
    """Return the instructions of every loop without another branch in it."""
    found: list[list[str]] = []
    body: list[tuple[int, str]] = []
    for place, line in re.findall(r"^ *([0-9a-f]+):\s+(.*)$", assembly, re.MULTILINE):
        body.append((int(place, 16), line.split(" # ")[0].replace("\t", " ")))
        if branch := re.match(
            r"(b|b\.\w+|cbn?z|tbn?z|ret|retq|j[a-z]+)\b.*?(?:0x([0-9a-f]+) <|$)", line
        ):
            first = int(branch[2], 16) if branch[2] else -1
            loop = [one for at, one in body if at >= first]
            if body[0][0] <= first <= body[-1][0]:
                found.append(["again:", *loop[:-1], re.sub(r"0x[0-9a-f]+ <.*", "again", loop[-1])])
            body = []
    return found


def cycles(processor: str, lines: list[str]) -> float:
    """Return the cycles that llvm-mca gives a repetition of these instructions."""
    triple = "x86_64" if PROCESSORS[processor] is X86 else "aarch64"
    done = subprocess.run(
        ["llvm-mca-19", f"-mtriple={triple}", f"-mcpu={processor}", f"-iterations={ITERATIONS}"],
        input="\n".join(lines), capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"llvm-mca, {processor}: {done.stderr[:1000]}")
    return int(re.search(r"Total Cycles:\s+(\d+)", done.stdout)[1]) / ITERATIONS


def estimate(processor: str, assembly: str, product: Product) -> tuple[float, float]:
    """Return the products a cycle of the largest loop of a kernel, and the processor's best."""
    found = [body for body in loops(assembly) if not any(map(OTHER.match, body))]
    count = [sum(line.startswith(product.name) for line in body) for body in found]
    most = [body for body, n in zip(found, count, strict=True) if n == max(count)]
    least = min(cycles(processor, body) for body in most)
    lines = [product.line, product.line.replace("v31.4s", "v31.s[0]")]  # models part the two
    best = min(cycles(processor, [line.format(i) for i in range(24)]) for line in lines)
    return max(count) * product.products / least, 24 * product.products / best


def measured(zig: Path, folder: Path) -> dict[str, float]:
    """Return the share of this machine's products that its kernels reach, by precision."""
    program = folder / "products"
    line = [zig, "c++", "-target", "x86_64-linux-musl", *OPTIONS, *AVX512, "-mavx512vnni",
            "-mavx512bf16", Path(__file__).with_name("products.cpp"),
            folder / "kernels_avx512_bf16.o", "-o", program]  # fmt: skip
    subprocess.run([*map(str, line)], check=True)
    said = subprocess.run([program], check=True, capture_output=True, encoding="utf-8").stdout
    print(said)
    return {name: float(share) for name, share in re.findall(r"(\w+): ([\d.]+) of", said)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zig", type=Path, default=ROOT / "build" / "zig" / "ziglang" / "zig")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "estimates", help="assembly")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    rows = ["| processor | loop | instruction | products a cycle | at best | share | measured |",
            "|---|---|---|--:|--:|--:|--:|"]  # fmt: skip
    folder = arguments.work
    folder.mkdir(parents=True, exist_ok=True)
    assembly = {name: compiled(arguments.zig, name, folder) for name in KERNELS}
    here = measured(arguments.zig, folder) if arguments.measure else {}
    for processor, kernels in PROCESSORS.items():
        for precision, kernel, product in kernels:
            reached, best = estimate(processor, assembly[kernel], product)
            real = here.get(precision) if processor == "znver4" else None
            rows.append(
                f"| {processor} | {precision} ({kernel}) | `{product.name}` | {reached:.1f} | "
                f"{best:.0f} | {100 * reached / best:.0f} % | "
                f"{'' if real is None else f'{100 * real:.0f} %'} |"
            )
    table = "\n".join(rows)
    print(table)
    if arguments.out is not None:
        arguments.out.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
