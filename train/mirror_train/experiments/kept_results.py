"""Keep the results of runs in files that are named by a hash of everything that decides them.

The same command can then continue after an interruption, and commands can share equal runs.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mirror_rt import __version__
from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.errors import DataError
from mirror_rt.io.atomic import new_file, sha256, write_json
from mirror_train.compute.precision import resolve_device, resolve_precision

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The file of one result, which may exist already, in a folder of results.

    `identity` is everything that decides the result, as JSON values; its hash follows `name` in the
    name of the file.
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
        """Return the kept values, converted by `read`; None where nothing is kept.

        Raises:
            DataError: the file cannot be read, or does not hold such a result.
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


def run_setting(weights_sha256: list[str], *, precision: str, device: str) -> dict[str, Any]:
    """Return what decides the result of every run: base model, precision, device and torch.

    `weights_sha256` are the hashes of the base model's weight files; `auto` is resolved.
    """
    import torch  # imported here, because the other functions work without torch

    resolved = resolve_device(device)
    return {
        "model": weights_sha256,
        "precision": resolve_precision(precision, resolved),
        "device": resolved.type,
        "torch": torch.__version__,
    }


def machine_facts(*, precision: str, device: str) -> dict[str, Any]:
    """Return where and when a table was made, for its notes; `auto` is resolved."""
    resolved = resolve_device(device)
    return {
        "precision": resolve_precision(precision, resolved),
        "device": str(resolved),
        "machine": machine_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "mirror_rt": __version__,
    }


def to_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, a line for each row."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in (header, *rows)]
    return "".join([lines[0], "|", "---|" * len(header), "\n", *lines[1:]])


def write_results(folder: Path, name: str, text: str, values: dict[str, Any]) -> list[Path]:
    """Write NAME.md and NAME.json into a folder; return their paths."""
    table, figures = folder / f"{name}.md", folder / f"{name}.json"
    with new_file(table, overwrite=True) as file:
        file.write(text.encode())
    write_json(figures, values)
    return [table, figures]


def files_sha256(paths: Iterable[Path], below: Path) -> str:
    """Return a hash of the contents of files and of their paths relative to the folder `below`."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(below).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()
