"""Say what decides the results of runs, and where they were made: model, files, machine."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_rt import __version__
from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.io.atomic import sha256
from mirror_train.compute.precision import resolve_device, resolve_precision

if TYPE_CHECKING:
    from mirror_train.experiments.study import StudyConfig


def run_setting(config: StudyConfig) -> dict[str, Any]:
    """Return what decides the result of every run: base model, precision, device and torch."""
    import torch  # imported here, because the other functions work without torch

    from mirror_train.model.pretrained import load_pretrained

    device = resolve_device(config.device)
    return {
        "model": load_pretrained(config.model, **config.load_options()).weights_sha256(),
        "precision": resolve_precision(config.precision, device),
        "device": device.type,
        "torch": torch.__version__,
    }


def machine_facts(config: StudyConfig) -> dict[str, Any]:
    """Return where and when a table was made, for its notes; `auto` is resolved."""
    device = resolve_device(config.device)
    return {
        "precision": resolve_precision(config.precision, device),
        "device": str(device),
        "machine": machine_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "mirror_rt": __version__,
    }


def files_sha256(paths: Iterable[Path], below: Path) -> str:
    """Return a hash of the contents of files and of their paths relative to the folder `below`."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(below).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


def path_sha256(path: Path) -> str:
    """Return the hash of a file, or of the files of a folder."""
    if path.is_file():
        return sha256(path)
    return files_sha256((one for one in sorted(path.rglob("*")) if one.is_file()), path)
