"""Values of every option of loading and of encoding, for the tests of what takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

# A value other than the default for each field, as it is written on a command line.
GIVEN = {
    "variant": ("int8", "int8"),
    "revision": ("v2", "v2"),
    "offline": (True, None),
    "verify": (False, "--no-verify"),
    "pooling": ("mean", "mean"),
    "providers": ("cuda", "cuda"),
    "allow_fallback": (True, None),
    "threads": (3, "3"),
    "spinning": ("off", "off"),
    "devices": ([0, 1], "0,1"),
    "cuda_graphs": (True, None),
    "provider_options": ({"gpu_mem_limit": 4 << 30}, "gpu_mem_limit=4294967296"),
    "cache": (Path("vectors.cache"), "vectors.cache"),
    "cache_bytes": (1 << 26, "67108864"),
    "batch_size": (5, "5"),
    "normalize_embeddings": (False, "--no-normalize"),
    "truncate_dim": (8, "8"),
    "precision": ("int8", "int8"),
    "ranges": (np.array([[-1.0], [1.0]]), "ranges.npy"),
    "prompt_name": ("query", "query"),
    "prompt": ("passage: ", "passage: "),
    "on_too_long": ("chunk", "chunk"),
    "errors": ("nan", "nan"),
}
