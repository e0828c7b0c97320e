"""Compare the native extension with numpy in right-padding ragged token ids to a batch.

    python benchmarks/padding.py [--json FILE]

Both get the output of the tokenizer (one list of ids per text) and make the three input arrays of
the session. They run alternately, the best numpy version first; medians and ratios are printed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np

from mirror_rt.tokens.padding import RaggedTokens


def pad_with_numpy(sequences, pad_id):
    """Pad with vectorised numpy: one concatenation and one boolean scatter."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences])
    return ids, mask.astype(np.int64), np.zeros_like(ids)


def pad_row_by_row(sequences, pad_id):
    """Pad with plain numpy: a slice assignment for each row."""
    length = max(map(len, sequences))
    ids = np.full((len(sequences), length), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return ids, mask, np.zeros_like(ids)


def pad_natively(sequences, pad_id):
    tokens = RaggedTokens.from_lists(sequences)
    return tuple(tokens.pad(np.arange(len(tokens)), pad_id=pad_id))


CONTENDERS = {"native": pad_natively, "numpy": pad_with_numpy, "numpy by row": pad_row_by_row}


def measure(sequences, repeats):
    """Return the median microseconds of each contender, run in turn."""
    expected = pad_with_numpy(sequences, 0)
    for contender in CONTENDERS.values():
        for got, want in zip(contender(sequences, 0), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    times = {name: [] for name in CONTENDERS}
    for _ in range(repeats):
        for name, contender in CONTENDERS.items():
            began = time.perf_counter()
            contender(sequences, 0)
            times[name].append(time.perf_counter() - began)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    results = []
    print(
        f"{'rows':>6}{'mean length':>13}"
        + "".join(f"{n + ' us':>17}" for n in CONTENDERS)
        + f"{'numpy / native':>17}"
    )
    for rows, mean in ((1, 14), (32, 14), (32, 64), (512, 4), (512, 14), (128, 200)):
        lengths = np.minimum(rng.geometric(1 / max(1, mean - 2), rows) + 2, 512)
        sequences = [rng.integers(0, 30_000, n).tolist() for n in lengths]
        medians = measure(sequences, arguments.repeats)
        ratio = min(v for n, v in medians.items() if n != "native") / medians["native"]
        print(
            f"{rows:>6}{mean:>13}"
            + "".join(f"{v:>17.1f}" for v in medians.values())
            + f"{ratio:>17.1f}"
        )
        results.append({"rows": rows, "mean_length": mean, "median_us": medians, "ratio": ratio})
    if arguments.json:
        machine = {
            "processor": _processor(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        arguments.json.write_text(
            json.dumps({"machine": machine, "results": results}, indent=2) + "\n"
        )


def _processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
