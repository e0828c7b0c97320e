"""Results of runs, kept in files that are named by a hash of everything that decides them.

The same command then goes on after an interruption, and commands share the runs that are alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mirror_rt.errors import DataError
from mirror_rt.io.atomic import sha256, write_json
from mirror_train.compute.precision import resolve_device, resolve_precision

__all__ = ["KeptResult", "files_sha256", "run_setting"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The place of one result, which may be there already.

    Attributes:
        folder: of the results.
        identity: everything that decides the result, as JSON values.
        name: of what is kept, before the hash in the file's name.
    """

    folder: Path
    identity: dict[str, Any]
    name: str = ""

    @property
    def path(self) -> Path:
        """The file of the result."""
        text = json.dumps(self.identity, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self.folder / f"{self.name}{'-' * bool(self.name)}{digest}.json"

    def load(self, read: Callable[[dict[str, Any]], T]) -> T | None:
        """Return what `read` makes of the kept values; None where nothing is kept.

        Raises:
            DataError: the file cannot be read, or is of something else.
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
        """Keep the values of a result."""
        write_json(self.path, values | {"identity": self.identity})


def run_setting(weights_sha256: list[str], *, precision: str, device: str) -> dict[str, Any]:
    """Return what decides the result of every run: the base model, and what computes.

    Args:
        weights_sha256: of the base model.
        precision: as the run was told; `auto` is resolved.
        device: as the run was told; `auto` is resolved.
    """
    import torch  # the hashes are also of use without it

    resolved = resolve_device(device)
    return {
        "model": weights_sha256,
        "precision": resolve_precision(precision, resolved),
        "device": resolved.type,
        "torch": torch.__version__,
    }


def files_sha256(paths: Iterable[Path], below: Path) -> str:
    """Hash the contents of files, and their places below a folder."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(below).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()
