"""Keep the results of runs in files that are named by a hash of everything that decides them.

The same command can then continue after an interruption, and commands can share equal runs.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mirror_rt import __version__
from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.errors import DataError
from mirror_rt.io.atomic import sha256, write_json
from mirror_train.compute.precision import resolve_device, resolve_precision

if TYPE_CHECKING:
    from mirror_train.experiments.study import StudyConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The file of one result, which may exist already, in a folder of results.

    `identity` is everything that decides the result, as JSON values; its hash is the file's name.
    """

    folder: Path
    identity: dict[str, Any]

    @property
    def path(self) -> Path:
        """The file of the result."""
        text = json.dumps(self.identity, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def load(self, read: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the kept values, converted by `read`; None where nothing is kept.

        A file that cannot be read, or does not hold such a result, raises DataError.
        """
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["identity"] != json.loads(json.dumps(self.identity)):
                raise ValueError("of another run")
            return read(found)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self.path} is not the result of a run ({error}): remove it to run it again"
            ) from error

    def save(self, values: dict[str, Any]) -> None:
        """Write the values of a result."""
        write_json(self.path, values | {"identity": self.identity})


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
