"""Check an installed mirror-rt: its native code, and with --model a vector of a model.

Run it outside the clone, with the Python that has the wheel:

    python check_wheel.py --model all-MiniLM-L6-v2
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import mirror_rt
from mirror_rt import Encoder, _core, quantize_embeddings, search


def main() -> int:
    """Run the checks, and print what was checked and where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="bundle, or the name of a ready model")
    arguments = parser.parse_args()
    package = Path(mirror_rt.__file__).parent
    if (package.parent / "CMakeLists.txt").exists():
        sys.exit(f"{package} is the clone: install the wheel, and run this elsewhere")
    _check_native()
    print(f"{package}: Python {sys.version.split()[0]}, {Path(_core.__file__).name}")
    if arguments.model:
        began = time.perf_counter()
        vector = Encoder.load(arguments.model).encode("a river")
        if not np.isfinite(vector).all():
            sys.exit(f"{arguments.model} gave {vector}")
        print(f"{arguments.model}: {len(vector)} dimensions in {time.perf_counter() - began:.1f} s")
    return 0


def _check_native() -> None:
    """Find rows among their own codes, and pad a batch."""
    rows = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for precision in ("int8", "ubinary"):
        codes = quantize_embeddings(rows, precision)
        if search(rows, codes, k=1).indices[:, 0].tolist() != list(range(100)):
            sys.exit(f"the native search among {precision} codes is wrong")
    ids, offsets = _core.flatten([[1, 2, 3], [4]])
    padded = _core.pad_rows(ids, offsets, np.arange(2), pad_id=0, length=-1)
    if padded[0].tolist() != [[1, 2, 3], [4, 0, 0]]:
        sys.exit("the native padding is wrong")


if __name__ == "__main__":
    sys.exit(main())
