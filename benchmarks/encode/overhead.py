"""Measure the overhead of `Encoder.encode` over six lines of tokenizers and onnxruntime.

    python benchmarks/encode/overhead.py [BUNDLE] [--repeats N] [--threads N] [--json FILE]

Both sides encode one short text. Without a bundle the default model is exported first, to a
temporary folder. Both sides run in one process, in turn, on one session, because two sessions of
the same graph differ by up to a tenth, depending on where their weights lie in memory. The least
and the median of the wall time and of the processor time of the calling thread are printed, and the
differences, which are the overhead.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from mirror_rt import Encoder
from mirror_rt.bundle.manifest import Layout

TEXT = "short text"
CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}


def bare(encoder):
    """Return the six lines as a function, on the encoder's own session."""
    graph = encoder.pipeline.model.runner
    session, inputs = graph.session(), graph.inputs
    tokenizer = Tokenizer.from_file(str(encoder.folder / Layout.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def encode(text):
        encoding = tokenizer.encode(text)
        ids = np.array([encoding.ids], dtype=np.int64)
        mask = np.array([encoding.attention_mask], dtype=np.int64)
        types = np.array([encoding.type_ids], dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        found = session.run(["sentence_embedding"], {name: feeds[name] for name in inputs})
        return found[0][0]

    return encode


def measure(encoder, repeats):
    """Return the microseconds of each side and of the difference, by clock and statistic."""
    sides = {"encoder": encoder.encode, "bare": bare(encoder)}
    np.testing.assert_allclose(*(encode(TEXT) for encode in sides.values()), atol=1e-6)
    times = {(side, clock): [] for side in sides for clock in CLOCKS}
    for repeat in range(repeats):
        for side in sorted(sides, reverse=bool(repeat % 2)):
            began = {clock: now() for clock, now in CLOCKS.items()}
            sides[side](TEXT)
            for clock, now in CLOCKS.items():
                times[side, clock].append(1e6 * (now() - began[clock]))
    found = {}
    for clock in CLOCKS:
        for name, of in (("min", min), ("median", statistics.median)):
            row = {side: of(times[side, clock]) for side in sides}
            found[f"{clock} {name}"] = row | {"overhead": row["encoder"] - row["bare"]}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, nargs="?", help="default: the default model, exported")
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--threads", type=int, help="of the session; default: all processors")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = arguments.bundle
        if bundle is None:
            from mirror_export import ExportConfig, export_bundle
            from mirror_train.model.model_folder import DEFAULT_MODEL

            bundle = Path(folder) / "bundle"
            export_bundle(ExportConfig(DEFAULT_MODEL, bundle))
        with Encoder.load(bundle, providers="cpu", threads=arguments.threads) as encoder:
            found = measure(encoder, arguments.repeats)
    print(f"{'microseconds':<16}{'encoder':>10}{'bare':>10}{'overhead':>10}")
    for name, row in found.items():
        print(f"{name:<16}" + "".join(f"{row[key]:>10.1f}" for key in row))
    if arguments.json:
        machine = {"processor": platform.processor(), "python": platform.python_version()}
        arguments.json.write_text(
            json.dumps(machine | {"microseconds": found}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
