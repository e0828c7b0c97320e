"""Make models and exports once for all processes of all runs, until what makes them changes.

They are kept in build/made/HASH/NAME; of the hashes, the last few that were used.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from paths import ROOT, TESTS

KEPT = 8  # hashes
# Packages whose versions decide what comes of a model and an export.
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "onnxscript", "tokenizers", "torch", "transformers")
# Folders of mirror_rt in which nothing is called by what makes a model: they lie above it.
_ABOVE = {"adapters", "bulk", "cli", "client", "compat", "diagnostics", "server", "triton"}


class MadeOnce:
    """Give folders by their names; a folder that is not there is made by the given function.

    Args:
        temporary: a folder that all processes of a run share, for a clone that cannot be written.
    """

    def __init__(self, temporary: Path) -> None:
        build = ROOT / "build"
        writable = os.access(build if build.exists() else ROOT, os.W_OK)
        self._root = (build if writable else temporary) / "made"

    def __call__(self, name: str, write: Callable[[Path], object]) -> Path:
        """Return the folder of this name, which `write` has made, now or in an earlier run."""
        by = self._root / _hash_of([*_sources(), _source(write)])
        folder = by / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._root / "lock"):
            self._prune(by)
        with FileLock(f"{folder}.lock"):
            known = folder.with_name(f"{folder.name}.sha256")
            if folder.exists() and not (known.exists() and known.read_text() == hash_files(folder)):
                shutil.rmtree(folder)  # broken off, or a test has written into it
            if not folder.exists():
                making = folder.with_name(f"{folder.name}.making")
                shutil.rmtree(making, ignore_errors=True)
                write(making)
                known.write_text(hash_files(making))
                making.rename(folder)
        return folder

    def _prune(self, current: Path) -> None:
        """Remove what was made by the hashes that were used longest ago."""
        current.touch()
        found = sorted((path for path in self._root.iterdir() if path.is_dir()), key=_age)
        for old in found[:-KEPT]:
            shutil.rmtree(old)


def hash_files(folder: Path) -> str:
    """Return a hash of the names and contents of a folder's files."""
    return _hash_of(path for path in folder.rglob("*") if path.is_file())


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _source(write: Callable[[Path], object]) -> Path:
    """Return the file with the code of a function."""
    while isinstance(write, functools.partial):
        write = write.func
    return Path(inspect.getsourcefile(write) or "")


@functools.cache
def _sources() -> tuple[Path, ...]:
    """Return the files whose code makes models: those of the product, and those beside this one."""
    product = [ROOT / "train/mirror_train", ROOT / "export/mirror_export", ROOT / "mirror_rt"]
    found = [path for top in product for path in top.rglob("*.py")
             if not _ABOVE & set(path.relative_to(top).parts)]  # fmt: skip
    native = [path for path in (ROOT / "csrc").rglob("*") if path.is_file()]
    words = TESTS / "support" / "words_en.txt"
    return (*found, *native, *Path(__file__).parent.glob("*.py"), words)


@functools.cache
def _hash_of_file(path: Path, changed: int) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _hash_of(paths: Iterable[Path]) -> str:
    """Return a hash of files, by their names and contents, and of the versions of libraries."""
    libraries = [sys.version, *(f"{name} {version(name)}" for name in _LIBRARIES)]
    found = hashlib.sha256("\n".join(libraries).encode())
    for path in sorted(paths):
        found.update(f"\n{path.name} ".encode())
        found.update(_hash_of_file(path, path.stat().st_mtime_ns))
    return found.hexdigest()[:16]
