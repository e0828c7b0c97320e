"""The encoder on an NVIDIA card: its vectors, its rate and its latency, beside others.

    python benchmarks/gpu_encode.py BUNDLE --model FOLDER --out FOLDER [--device cpu] [--rounds 5]

First every graph's vectors are compared with those of fp32 on the CPU, over all texts. Then the
contenders take turns: texts a second of all texts in one call, each at the batch size that is best
for it, and the median time of a call of one short text. Contenders that cannot be had here are left
out, with the reason. Writes gpu_encode.json and gpu_encode.md; the exit status is 1 where vectors
disagree. With --device cpu every step runs on the CPU, on a few texts: a rehearsal.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from mirror_rt import Encoder, MirrorError
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.diagnostics.benchmarking import machine_name, synthetic_texts

# Worst cosine to fp32 on the CPU.
AGREE = {"fp32": 0.99999, "fp16": 0.999, "int8": 0.97}
LENGTHS = (4, 8, 8, 12, 16, 16, 24, 32, 48, 64, 96, 128, 256, 500)


class OursOnce:
    """This project, one graph of the bundle."""

    batches = (32, 128, 512, 2048)

    def __init__(self, bundle, device, variant, cuda_graphs=False):
        self.encoder = Encoder.load(
            bundle, variant=variant, providers=device, cuda_graphs=cuda_graphs
        )

    def encode(self, texts, batch):
        return self.encoder.encode(texts, batch_size=batch, show_progress_bar=False)

    def close(self):
        self.encoder.close()


class SentenceTransformersTorch:
    """PyTorch, in half precision on a card."""

    batches = (32, 128, 512)

    def __init__(self, model, device, folder):
        import torch
        from sentence_transformers import SentenceTransformer

        half = {"torch_dtype": torch.float16} if device == "cuda" else {}
        self.model = SentenceTransformer(model, device=device, model_kwargs=half)
        self.model.max_seq_length = 512

    def encode(self, texts, batch):
        return self.model.encode(
            texts, batch_size=batch, show_progress_bar=False, normalize_embeddings=True
        )

    def close(self):
        del self.model


class SentenceTransformersOnnxO4(SentenceTransformersTorch):
    """Its ONNX backend, optimised by optimum at level O4: fused, and in half precision."""

    def __init__(self, model, device, folder):
        from sentence_transformers import SentenceTransformer, export_optimized_onnx_model

        if device != "cuda":
            raise RuntimeError("O4 runs on a card alone")
        provider = {"provider": "CUDAExecutionProvider"}
        plain = SentenceTransformer(model, device=device, backend="onnx", model_kwargs=provider)
        plain.save_pretrained(str(folder / "st-onnx"))
        export_optimized_onnx_model(plain, "O4", str(folder / "st-onnx"))
        self.model = SentenceTransformer(
            str(folder / "st-onnx"),
            device=device,
            backend="onnx",
            model_kwargs=provider | {"file_name": "onnx/model_O4.onnx"},
        )
        self.model.max_seq_length = 512


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    bundle, device = arguments.bundle, arguments.device
    reference = Encoder.load(bundle, variant="fp32", providers="cpu")
    count = arguments.texts or (2000 if device == "cuda" else 24)
    texts, short = make_texts(reference, count)
    left_out, contenders = {}, {}
    for name, make in contenders_of(arguments).items():
        try:
            contenders[name] = make()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            left_out[name] = f"{type(error).__name__}: {first_line(error)}"
            print(f"left out: {name}: {left_out[name]}", flush=True)
    checks = check(contenders, reference, bundle, texts)
    reference.close()
    report = {
        "device": device_name(device),
        "machine": machine_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions(),
        "bundle": str(bundle),
        "texts": len(texts),
        "worst_cosine": checks,
        "left_out": left_out,
        "results": {},
    }
    wrong = [name for name, found in checks.items() if not found["agrees"]]
    if not wrong:
        report["results"] = measure(contenders, texts, short, arguments.rounds)
    for contender in contenders.values():
        contender.close()
    (arguments.out / "gpu_encode.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.out / "gpu_encode.md").write_text(as_markdown(report))
    if wrong:
        print(f"vectors disagree: {wrong}: {checks}")
    return int(bool(wrong))


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--model", help="folder or name for sentence-transformers")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, help="how many (2,000; 24 on the CPU)")
    parser.add_argument("--out", type=Path, default=Path())
    return parser.parse_args()


def contenders_of(arguments):
    """Name -> how to make it."""
    bundle, device = arguments.bundle, arguments.device
    variants = Manifest.read(bundle).variants
    made = {
        f"mirror-rt {name}": lambda name=name: OursOnce(bundle, device, name)
        for name, variant in variants.items()
        if device == "cuda" or variant.target == "cpu"
    }
    for name, variant in variants.items():
        if variant.target == "cpu" and variant.precision != "int8":
            made[f"mirror-rt {name}, CUDA graphs"] = lambda name=name: OursOnce(
                bundle, device, name, cuda_graphs=True
            )
    if arguments.model is not None:
        folder = arguments.out
        for title, kind in (
            ("sentence-transformers torch", SentenceTransformersTorch),
            ("sentence-transformers ONNX O4", SentenceTransformersOnnxO4),
        ):
            made[title] = lambda kind=kind: kind(source(arguments.model), device, folder)
    return made


def source(model):
    if Path(model).is_dir():
        return model
    from mirror_train.model.model_folder import default_model_folder

    return str(default_model_folder()) if model == "all-MiniLM-L6-v2" else model


def make_texts(encoder, count):
    """Texts of many lengths, and short ones."""
    lengths = [min(length, encoder.max_length) for length in LENGTHS]
    each = -(-count // len(lengths))
    texts = [
        text
        for i, length in enumerate(lengths)
        for text in synthetic_texts(encoder, length, each, seed=i)
    ]
    random.Random(0).shuffle(texts)
    return texts[:count], synthetic_texts(encoder, 12, 64, seed=99)


def check(contenders, reference, bundle, texts):
    """Worst cosine of each to fp32 on the CPU, alone and in batches."""
    variants, found = Manifest.read(bundle).variants, {}
    expected = reference.encode(texts, show_progress_bar=False)
    for name, contender in contenders.items():
        vectors = contender.encode(texts, contender.batches[0]).astype(np.float32)
        alone = np.stack([contender.encode([text], 32)[0] for text in texts[:20]])
        worst = float((vectors * expected).sum(axis=1).min())
        single = float((alone * expected[:20]).sum(axis=1).min())
        variant = variants.get(name.removeprefix("mirror-rt ").split(",")[0])
        limit = AGREE[variant.precision if variant else "fp16"]
        ok = min(worst, single) >= limit
        found[name] = {"batch": worst, "alone": single, "limit": limit, "agrees": bool(ok)}
        print(f"{name}: worst cosine {worst:.6f}, alone {single:.6f}", flush=True)
    return found


def measure(contenders, texts, short, rounds):
    """Texts a second at the best batch size, and milliseconds of a call of one short text."""
    best = {name: best_batch(contender, texts) for name, contender in contenders.items()}
    rates = {name: [] for name in contenders}
    delays = {name: [] for name in contenders}
    for turn in range(rounds):
        order = list(contenders)[:: 1 if turn % 2 == 0 else -1]
        for name in order:
            contender = contenders[name]
            rates[name].append(len(texts) / seconds(contender.encode, texts, best[name]))
            delays[name] += [1000 * seconds(contender.encode, [text], 32) for text in short]
    return {
        name: {
            "batch_size": best[name],
            "texts_per_second": statistics.median(rates[name]),
            "best_texts_per_second": max(rates[name]),
            "p50_ms": statistics.median(delays[name]),
            "p95_ms": float(np.percentile(delays[name], 95)),
        }
        for name in contenders
    }


def best_batch(contender, texts):
    def rate(batch):
        contender.encode(texts, batch)  # memory is taken, kernels are chosen
        return -seconds(contender.encode, texts, batch)

    return max(contender.batches, key=rate)


def seconds(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def as_markdown(report):
    lines = [
        f"{report['device']}, {report['texts']} texts of 4 to 500 tokens, {report['date']}; "
        f"{report['versions']}",
        "",
        "| | texts/s | batch size | one short text, p50 ms | p95 ms | worst cosine to fp32 |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in report["results"].items():
        lines.append(
            f"| {name} | {found['texts_per_second']:.0f} | {found['batch_size']} | "
            f"{found['p50_ms']:.2f} | {found['p95_ms']:.2f} | "
            f"{report['worst_cosine'][name]['batch']:.5f} |"
        )
    lines += [f"| {name} | left out: {why} | | | | |" for name, why in report["left_out"].items()]
    return "\n".join(lines) + "\n"


def versions():
    import importlib.metadata

    named = ("onnxruntime", "onnxruntime-gpu", "torch", "sentence-transformers", "optimum")
    found = []
    for name in named:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def device_name(device):
    if device == "cpu":
        return f"rehearsal on the CPU ({machine_name()})"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    return ", ".join(name for name in names if name)


def first_line(error):
    return (str(error).splitlines() or [""])[0][:200]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MirrorError as error:
        sys.exit(f"gpu_encode: {error}")
