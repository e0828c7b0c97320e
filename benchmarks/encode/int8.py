"""Compare a bundle's int8 graph with onnxruntime's dynamic quantization: accuracy and speed.

Call `python benchmarks/encode/int8.py BUNDLE` with a bundle that was exported with
--precision fp32,int8.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from mirror_export.parity import parity_texts
from mirror_rt import Encoder, Manifest
from mirror_rt.bundle.description import describe_folder
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.tokens.tokenization import TextTokenizer

PROVIDERS = ["CPUExecutionProvider"]


def load(folder: Path, file: Path, threads: int | None) -> Encoder:
    """Load the bundle with another graph."""
    manifest = Manifest.read(folder)
    graph = dataclasses.replace(manifest.variant("fp32"), file=str(file.resolve()))
    return Encoder(
        describe_folder(folder, manifest=dataclasses.replace(manifest, variants={"fp32": graph})),
        LoadOptions(providers=PROVIDERS, threads=threads),
    )


def contenders(folder: Path, scratch: Path) -> dict[str, Path]:
    """Return name -> graph."""
    manifest = Manifest.read(folder)
    fp32 = folder / manifest.variant("fp32").file
    graphs = {"fp32": fp32}
    for name, reduced in (("quantize_dynamic", False), ("quantize_dynamic, reduce_range", True)):
        graphs[name] = scratch / f"{reduced}.onnx"
        quantize_dynamic(
            str(fp32),
            str(graphs[name]),
            per_channel=True,
            reduce_range=reduced,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    return graphs | {"by token (int8 of the bundle)": folder / manifest.variant("int8").file}


def fastest(run, repeats: int) -> float:
    """Return the seconds of the fastest of some runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    folder = arguments.bundle
    manifest = Manifest.read(folder)
    tokenizer = TextTokenizer.from_file(
        folder / "tokenizer.json", max_length=manifest.max_length, pad_id=manifest.pad_id
    )
    texts = parity_texts(tokenizer, manifest.language)
    print("graph | mean cosine | worst | alone, to itself in a batch | texts/s | one query, ms")
    with tempfile.TemporaryDirectory() as scratch:
        expected = None
        for name, file in contenders(folder, Path(scratch)).items():
            encoder = load(folder, file, arguments.threads)
            found = encoder.encode(texts)
            expected = found if expected is None else expected
            alone = np.stack([encoder.encode(text) for text in texts])
            cosine, stable = (expected * found).sum(1), (alone * found).sum(1)
            seconds = fastest(lambda e=encoder: e.encode(texts), arguments.repeats)
            query = fastest(lambda e=encoder: e.encode(texts[0]), 20 * arguments.repeats)
            print(
                f"{name} | {cosine.mean():.4f} | {cosine.min():.4f} | {stable.min():.4f} | "
                f"{len(texts) / seconds:.0f} | {query * 1e3:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
