"""Keep the vectors of a run's strings beside it, by everything that decides them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np

from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.io.atomic import new_file, write_json
from mirror_rt.kept_work import Identity
from mirror_rt.progress import progress_bar
from mirror_train.training.run import Run

Kind = Literal["teacher", "neighbours"]
_PART = 2048  # strings between two files, which a kill loses


def kept_vectors(
    run: Run,
    name: Kind,
    encode: Callable[[list[str]], Vectors],
    texts: list[str],
    decides: Mapping[str, Any],
) -> Vectors:
    """Return the vectors of texts, [n, E], of which those in the folder OUT.name are read.

    Vectors of other texts, or of other values that they depend on, are removed.
    """
    strings = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    identity = Identity({**decides, "part": _PART, "strings": strings})
    folder = run.config.beside(name)
    plan = folder / "identity.json"
    if not plan.exists() or Identity.read(plan.read_bytes(), plan) != identity:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(plan, identity.values)
    parts = []
    bar = progress_bar(len(texts), run.shows_bars, unit="string", desc=name)
    try:
        for start in range(0, len(texts), _PART):
            part, path = texts[start : start + _PART], folder / f"part-{start:08d}.npy"
            if not path.exists():
                vectors = encode(part)
                with new_file(path, overwrite=True) as file:
                    np.save(file, vectors)
            parts.append(np.load(path))
            bar.update(len(part))
    finally:
        bar.close()
    return np.concatenate(parts)


def forget_vectors(run: Run) -> None:
    """Remove the vectors that are kept, once a run is complete."""
    for name in get_args(Kind):
        shutil.rmtree(run.config.beside(name), ignore_errors=True)
