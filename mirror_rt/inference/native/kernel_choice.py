"""Choose the kernels of the native engine by the time that they take, once a machine.

Processors that have the same instructions differ in their rates: products of bfloat16 have twice
the rate of float32 on one, and half of it on another.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.bundle.hub import cache_folder
from mirror_rt.cpus import processor_names
from mirror_rt.io.atomic import write_json

# Sizes of the encoder that is timed. Its text is long enough that attention counts as well.
_HIDDEN, _HEADS, _INNER, _TOKENS, _RUNS = 128, 2, 512, 64, 3
# The most capable kernels are taken unless others take less time than that by this factor, so that
# chance does not decide between equals.
_MARGIN = 1.1
_as_declared: ContextVar[bool] = ContextVar("as_declared", default=False)


class Kernels(NamedTuple):
    """The kernels that compute products.

    Attributes:
        precision: `fp32`, `bf16` or `int8`; `fp32` in the place of `bf16` where that is quicker.
        instruction_set: one of those that the engine has here.
    """

    precision: str
    instruction_set: str


Measure = Callable[[Sequence[Kernels]], list[float]]


def has_quick_kernels() -> bool:
    """Tell whether the processor has any of the instructions that the engine's kernels are for."""
    return _core.engine_instruction_sets()[-1] != "portable"


def kernels_for(precision: str) -> Kernels:
    """Return the quickest kernels for a precision on this machine."""
    sets = tuple(_core.engine_instruction_sets())
    if _as_declared.get():
        return Kernels(precision, sets[-1])
    return quickest(seconds_here(precision))


@contextlib.contextmanager
def as_declared() -> Iterator[None]:
    """Compute every precision as its name says in this block, to measure its error."""
    token = _as_declared.set(True)
    try:
        yield
    finally:
        _as_declared.reset(token)


def seconds_here(precision: str, *, keep: bool = True) -> dict[Kernels, float]:
    """Return the seconds that each of the kernels for a precision takes for a small encoder.

    They are measured once a machine, for the cache folder keeps them; not with `keep` of False.
    """
    try:
        folder = cache_folder()
    except RuntimeError:  # a user without a home, for whom nothing is kept
        folder = Path(os.devnull)
    return _seconds(precision, tuple(_core.engine_instruction_sets()), folder, measure, keep)


def quickest(seconds: dict[Kernels, float]) -> Kernels:
    """Choose among kernels by their times; the most capable ones come last."""
    least = min(seconds.values())
    return [kernels for kernels, one in seconds.items() if one <= _MARGIN * least][-1]


def candidates(precision: str, sets: Sequence[str]) -> list[Kernels]:
    """Return the kernels that may compute a precision, the most capable last.

    float32 in the place of bfloat16 is no less exact: weights and activations are not rounded.
    """
    quick = [name for name in sets if name != "portable"] or sets
    precisions = ("fp32", "bf16") if precision == "bf16" else (precision,)
    return [Kernels(one, name) for one in precisions for name in quick]


@functools.cache
def _seconds(
    precision: str, sets: tuple[str, ...], folder: Path, measure: Measure, keep: bool
) -> dict[Kernels, float]:
    return read_or_measure(precision, sets, folder, measure, keep=keep)


def read_or_measure(
    precision: str, sets: Sequence[str], folder: Path, measure: Measure, *, keep: bool = True
) -> dict[Kernels, float]:
    """Return the times that `folder` keeps of this machine; else measure them, and keep them there.

    A file that is damaged is written again, and one that cannot be written is done without. Of
    processes that measure at the same time, the first decides for all: their vectors are the same.
    """
    from mirror_rt.version import __version__

    which = candidates(precision, sets)
    names = [" ".join(kernels) for kernels in which]
    about = {"processor": (processor_names() or ["?"])[0], "mirror_rt": __version__,
             "kernels": names}  # fmt: skip
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    path = folder / "kernels" / f"{precision}-{key}.json"
    seconds = _kept(path, names)
    if seconds is None:
        damaged, seconds = path.exists(), measure(which)
        if keep:
            record = about | {"seconds": dict(zip(names, seconds, strict=True))}
            with contextlib.suppress(OSError):
                _keep(path, record, overwrite=damaged)
            seconds = _kept(path, names) or seconds
    return dict(zip(which, seconds, strict=True))


def _kept(path: Path, names: Sequence[str]) -> list[float] | None:
    """Return the times that a file keeps; None if it is not there, or damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        kept = json.loads(path.read_text(encoding="utf-8") if path.is_file() else "")["seconds"]
        seconds = [float(kept[name]) for name in names]
        if all(one > 0 for one in seconds):
            return seconds
    return None


def _keep(path: Path, record: dict[str, Any], *, overwrite: bool) -> None:
    """Write a record whole; one that is there stays unless `overwrite` says otherwise."""
    if overwrite:
        write_json(path, record)
        return
    own = path.with_name(f"{path.stem}.{os.getpid()}.json")
    write_json(own, record)
    try:
        os.link(own, path)  # fails where another process was first
    finally:
        own.unlink()


def measure(which: Sequence[Kernels]) -> list[float]:
    """Return the least of some times of each, in seconds; the kernels take turns."""
    encoders = [_small_encoder(kernels) for kernels in which]
    ids = np.zeros((1, _TOKENS), np.int64)
    seconds = [np.inf] * len(encoders)
    for turn in range(_RUNS + 1):
        for number, encoder in enumerate(encoders):
            began = time.perf_counter()
            encoder.run(ids, ids + 1, pooling="cls", normalize=False, threads=1, spins=0)
            if turn > 0:  # the first run takes memory
                seconds[number] = min(seconds[number], time.perf_counter() - began)
    return seconds


def _small_encoder(kernels: Kernels) -> _core.NativeEncoder:
    """Make an encoder of one layer, whose numbers are all alike: they change no time."""

    def pair(*shape: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        return np.full(shape, 0.01, np.float32), np.zeros(shape[-1], np.float32)

    encoder = _core.NativeEncoder(
        precision=kernels.precision, heads=_HEADS, key_heads=_HEADS, size=_HIDDEN // _HEADS,
        inner=_INNER, scale=0.125, epsilon=1e-6, activation="gelu", words=pair(1, _HIDDEN)[0],
        positions=pair(_TOKENS, _HIDDEN)[0], norm=pair(_HIDDEN),
        instruction_set=kernels.instruction_set,
    )  # fmt: skip
    encoder.add_layer(
        query_key_value=pair(_HIDDEN, 3 * _HIDDEN), attention_out=pair(_HIDDEN, _HIDDEN),
        attention_norm=pair(_HIDDEN), inner=pair(_HIDDEN, _INNER), out=pair(_INNER, _HIDDEN),
        out_norm=pair(_HIDDEN),
    )  # fmt: skip
    return encoder
