"""Rerank 100 documents of about 100 tokens for one query, beside the peers, in one run.

    python benchmarks/encode/rerank.py MODEL --data DATA [--rounds 7] [--isa avx2] [--quick]

MODEL is a folder of transformers with a cross-encoder of one label, as `mirror-rt tune` writes it.
The script exports it to a bundle (fp32 and int8), and to the ONNX graph that sentence-transformers
and fastembed take. This project runs in the Python that runs the script, which has the extras
`train` and `export`; every peer in an environment of its own, of the packages in `ENVIRONMENTS`,
which the script makes in --cache and keeps: run it with --quick first, which makes them. All have
the same weights, texts and processors.

First all logits are compared with those of PyTorch; a contender in fp32 whose logits differ by more
than .001 is left out, and so is one that cannot be installed or started. Then each gets the batch
size that is best for it, and they take turns, each round with another query and other documents.
The script prints medians over the rounds, and ratios as medians of the ratios in each round. The
results are written to benchmarks/results/rerank-DATE-MACHINE .json and .md.

--isa avx2 holds both sides to AVX2 on a wider processor; onnxruntime cannot be held, so the
contenders that run on it are left out there. text-embeddings-inference is no contender: it is
published as a container and as sources in Rust, and not as a package of Python.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import random
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

import numpy as np
from encode.compare import confine
from encode.rounds import Worker
from encode.setup import (
    ENVIRONMENTS,
    OWN_PACKAGES,
    ROOT,
    Environment,
    LeftOutError,
    call,
    change_json,
    processor_class,
    python_of,
)
from encode.texts import REVIEWS, SHORT, column
from helpers import median_ratio, write_whole
from tokenizers import Tokenizer

from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.evaluation.statistics import spearman
from mirror_rt.io.tables import markdown_table

SCRIPT = Path(__file__).with_name("rerank_worker.py")
DOCUMENTS, TOKENS = 100, 100
REFERENCE = "sentence-transformers torch"
PEERS = {
    REFERENCE: "st-torch",
    "sentence-transformers onnx": "st-onnx",
    "fastembed": "fastembed",
    "infinity": "infinity",
}
ON_ONNXRUNTIME = ("sentence-transformers onnx", "fastembed")
ENVIRONMENTS = {name: ENVIRONMENTS[name] for name in ("st-torch", "st-onnx", "fastembed")} | {
    # The last version; it needs sentence-transformers 3 and NumPy 1.
    "infinity": Environment(("infinity-emb[torch]==0.0.78", "transformers<5", "torch==2.13.0"))
}
HELD = {  # variables that hold PyTorch and this project to AVX2
    "MIRROR_RT_BENCHMARK_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def select_sets(data: Path, tokenizer: Path, count: int) -> list[tuple[str, list[str]]]:
    """Return some queries, each with 100 documents of joined sentences, of about 100 tokens."""
    lengths = Tokenizer.from_file(str(tokenizer))
    lengths.no_truncation()
    generator = random.Random(2026)
    queries = [text for text in column(data / SHORT[0][0], SHORT[0][1]) if text.endswith("?")]
    sentences = column(data / REVIEWS[0], REVIEWS[1]) + column(data / SHORT[1][0], SHORT[1][1])
    for texts in (queries, sentences):
        generator.shuffle(texts)
    own = [len(one.ids) for one in lengths.encode_batch(sentences, add_special_tokens=False)]
    pool, documents = iter(zip(sentences, own, strict=True)), []
    for _ in range(count * DOCUMENTS):
        parts, tokens, wanted = [], 0, generator.randint(TOKENS - 30, TOKENS + 10)
        while tokens < wanted:
            sentence, length = next(pool)
            parts.append(sentence)
            tokens += length
        documents.append(" ".join(parts))
    return [(queries[i], documents[i * DOCUMENTS : (i + 1) * DOCUMENTS]) for i in range(count)]


def folder_of(model: Path, cache: Path) -> Path:
    """Return the folder of the files made of these weights."""
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]
    folder = cache / f"rerank-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def export_bundle(model: Path, folder: Path) -> Path:
    """Export the bundle of this project once."""
    bundle = folder / "bundle"
    if not bundle.is_dir():
        print("  exporting the bundle", flush=True)
        call([sys.executable, "-m", "mirror_rt.cli", "export", str(model), "--out", str(bundle),
              "--precision", "fp32,int8"])  # fmt: skip
    return bundle


def export_graph(model: Path, folder: Path, cache: Path) -> Path:
    """Export the graph of the peers once, with the tokenizer cut at 512 tokens."""
    onnx, made = folder / "onnx", folder / "onnx.making"
    if onnx.is_dir():
        return onnx
    print("  exporting the graph of the peers", flush=True)
    code = (
        "import sys; from sentence_transformers import CrossEncoder as C; "
        "C(sys.argv[1], backend='onnx', device='cpu').save_pretrained(sys.argv[2])"
    )
    call([str(python_of(cache, "st-onnx", ENVIRONMENTS)), "-c", code, str(model), str(made)],
         cwd=cache, env=os.environ | OWN_PACKAGES | {"HF_HUB_OFFLINE": "1"})  # fmt: skip
    # fastembed reads files and values that newer versions of transformers do not write.
    tokenizer = json.loads((made / "tokenizer.json").read_text(encoding="utf-8"))
    cut = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    change_json(made / "tokenizer.json", truncation=(tokenizer["truncation"] or {}) | cut)
    change_json(made / "tokenizer_config.json", model_max_length=512, max_length=512)
    tokens = {name: f"[{name[:3].upper()}]" for name in ("cls_token", "sep_token", "pad_token")}
    change_json(made / "special_tokens_map.json", **tokens)
    made.rename(onnx)
    return onnx


class Rounds:
    """The contenders, which take turns; others are in `left_out`, with the reason."""

    def __init__(self, sets: list[tuple[str, list[str]]]) -> None:
        self.sets = sets
        self.workers, self.left_out, self.batch, self.agreement = {}, {}, {}, {}
        self.rounds: list[dict[str, float]] = []

    def start(self, name: str, python, folder: Path, threads: int) -> None:
        """Start a contender, warm it up, and compare its logits."""
        try:
            self.workers[name] = Worker(name, python, folder, threads, script=SCRIPT)
            self._compare(name)
        except (LeftOutError, BrokenPipeError, json.JSONDecodeError) as error:
            self._leave_out(name, error)

    def _leave_out(self, name: str, error: object) -> None:
        print(f"  {name} is left out: {error}", flush=True)
        self.left_out[name] = str(error)
        self.workers.pop(name, None)

    def score(self, name: str, number: int, batch: int):
        query, documents = self.sets[number]
        return self.workers[name]("score", query=query, documents=documents, batch=batch)

    def _compare(self, name: str) -> None:
        found = np.array(self.score(name, 0, 32)["scores"])
        if name == REFERENCE:
            self.expected = found
        difference = float(np.abs(found - self.expected).max())
        agreement = {
            "largest_difference": difference,
            "spearman": float(spearman(found, self.expected) or 0.0),
            "same_first_ten": len({*found.argsort()[-10:]} & {*self.expected.argsort()[-10:]}),
        }
        print(f"  {name:<28} {agreement}", flush=True)
        self.agreement[name] = agreement
        exact = "int8" not in name and "bf16" not in name
        if not difference <= (1e-3 if exact else np.inf):
            raise LeftOutError(f"its logits are others: they differ by {difference:.2g}")

    def search_batches(self) -> None:
        for name in self.workers:
            sizes = self.workers[name]("batches")["batches"]
            seconds = {size: self.score(name, 0, size)["seconds"] for size in sizes}
            self.batch[name] = min(seconds, key=seconds.get)
        print(f"best batch sizes: {self.batch}", flush=True)

    def take_turns(self) -> None:
        names = list(self.workers)
        for number in range(1, len(self.sets)):
            shift = number % len(names)
            found = {
                name: self.score(name, number, self.batch[name])["seconds"]
                for name in names[shift:] + names[:shift]
            }
            self.rounds.append(found)
            print(f"round {number}:", {n: round(s, 3) for n, s in found.items()}, flush=True)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def table(about: dict, run: Rounds) -> list[str]:
    """Return the lines of the report."""
    peers = [name for name in run.workers if name in PEERS]
    lines = [
        f"{about['machine']} ({about['class']}), {about['threads']} threads, {about['date']}: one "
        f"query with {DOCUMENTS} documents of {about['tokens']:.0f} tokens on average, medians of "
        f"{len(run.rounds)} rounds; logits beside those of {REFERENCE}. `{about['command']}`",
        "",
    ]
    header = ["", "seconds", "documents/s", "times the quickest peer's rate", "goal",
              "largest difference", "Spearman", "same first ten", "batch"]  # fmt: skip
    rows = []
    for name in run.workers:
        seconds = statistics.median(found[name] for found in run.rounds)
        share = median_ratio(run.rounds, float, name, *peers) if peers else None
        rate = "" if share is None else f"{1 / share:.2f}"
        goal = about["goals"].get(name)
        aim = "" if goal is None else f"{goal}{', missed' if rate and float(rate) < goal else ''}"
        a = run.agreement[name]
        rows.append([
            name, f"{seconds:.3f}", f"{DOCUMENTS / seconds:.1f}", rate, aim,
            f"{a['largest_difference']:.1e}", f"{a['spearman']:.4f}", str(a["same_first_ten"]),
            str(run.batch[name]),
        ])  # fmt: skip
    rows += [[name, f"left out: {why}"] for name, why in run.left_out.items()]
    lines += markdown_table(header, rows, numbers=True).splitlines()
    packages = "; ".join(f"{name}: {', '.join(e.packages)}" for name, e in ENVIRONMENTS.items())
    return [*lines, "", f"Environments of the peers: {packages}.", ""]


def write_report(folder: Path, about: dict, run: Rounds) -> None:
    """Write rerank-DATE-MACHINE .json and .md."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{about['machine']} {about['class']}".lower()).strip("-")
    stem = folder / f"rerank-{about['date']}-{slug}"
    names = ("rounds", "agreement", "batch", "left_out")
    report = {"about": about} | {name: getattr(run, name) for name in names}
    write_whole(stem.with_name(f"{stem.name}.json"), json.dumps(report, indent=1) + "\n")
    text = "\n".join(table(about, run))
    write_whole(stem.with_name(f"{stem.name}.md"), f"# Reranking beside the peers\n\n{text}")
    print(f"\nwritten: {stem}.json, .md")


def arguments_of_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder of a cross-encoder of one label")
    parser.add_argument("--data", type=Path, required=True, help="the evaluation data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--isa", choices=["avx2"], help="hold all sides to it")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the contenders")
    parser.add_argument("--quick", action="store_true", help="one round, and nothing is written")
    default = Path.home() / ".cache" / "mirror_rt" / "benchmarks"
    parser.add_argument("--cache", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    args.model, args.cache = args.model.resolve(), args.cache.resolve()
    args.rounds = 1 if args.quick else args.rounds
    return args


def start_peers(args: argparse.Namespace, run: Rounds, folder: Path, *, held: bool) -> None:
    for name, environment in PEERS.items():
        if args.only and name not in (REFERENCE, *args.only):
            continue
        if held and name in ON_ONNXRUNTIME:
            run.left_out[name] = "onnxruntime cannot be held to AVX2"
            continue
        try:
            python, model = python_of(args.cache, environment, ENVIRONMENTS), args.model
            if name in ON_ONNXRUNTIME:
                model = export_graph(args.model, folder, args.cache)
        except LeftOutError as error:
            run.left_out[name] = f"it cannot be installed: {error}"
            continue
        run.start(name, python, model, args.threads)


def main() -> None:
    """Measure, print and write."""
    args = arguments_of_command()
    kind = processor_class()
    wide = kind != "AVX2" and not args.isa
    confine(args.threads)
    if args.isa:
        os.environ.update(HELD)
    folder = folder_of(args.model, args.cache)
    bundle = export_bundle(args.model, folder)
    sets = select_sets(args.data, bundle / "tokenizer.json", args.rounds + 1)
    run = Rounds(sets)
    start_peers(args, run, folder, held=bool(args.isa) and kind != "AVX2")
    for variant in ("fp32", "bf16", "int8") if wide and "BF16" in kind else ("fp32", "int8"):
        if not args.only or f"mirror-rt {variant}" in args.only:
            run.start(f"mirror-rt {variant}", sys.executable, bundle, args.threads)
    run.search_batches()
    run.take_turns()
    run.close()
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    texts = [text for _, documents in sets for text in documents]
    counts = [len(one.ids) for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    about = {
        "machine": machine_name(),
        "class": kind + (", held to AVX2" if args.isa else ""),
        "threads": args.threads,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python benchmarks/encode/rerank.py " + " ".join(sys.argv[1:]),
        "tokens": statistics.mean(counts),
        "goals": {"mirror-rt fp32": 3.0 if wide else 1.3, "mirror-rt int8": 6.0 if wide else 2.6},
    }
    print("", *table(about, run), sep="\n")
    if not args.quick:
        write_report(args.out, about, run)


if __name__ == "__main__":
    main()
