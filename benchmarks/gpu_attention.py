"""Encode texts of several lengths on a GPU, so that onnxruntime prints its attention kernels.

ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO=1 python benchmarks/gpu_attention.py BUNDLE VARIANT
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mirror_rt import Encoder
from mirror_rt.diagnostics.benchmarking import synthetic_texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("variant")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    with Encoder.load(
        arguments.bundle, variant=arguments.variant, providers=arguments.device
    ) as encoder:
        for length in (16, 128, min(512, encoder.max_length)):
            print(f"{length} tokens, on {encoder.devices}", flush=True)
            encoder.encode(synthetic_texts(encoder, length, 8), show_progress_bar=False)


if __name__ == "__main__":
    main()
