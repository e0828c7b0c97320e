"""Manage PACK.partial, the folder in which the bundles of a pack are made and which becomes it."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mirror_rt.bundle.json_document import made_now
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.bundle.pack_index import (
    PACK_FILE,
    PackedBundle,
    PackIndex,
    is_pack,
    refuse_links_out,
)
from mirror_rt.errors import BundleError, OutputExistsError
from mirror_rt.io.atomic import check_free, link_or_copy
from mirror_rt.io.exchange import replace_folder
from mirror_rt.system import HAS_LOCKS, lock
from mirror_train.training.run_config import left_over

logger = logging.getLogger("mirror_export")

# The index of the complete bundles while others are made; by its name, no tool takes it for a pack.
_PROGRESS = "progress.json"
# Smaller files are not worth a link, since one edited in place would change in every bundle.
_SMALLEST = 64 * 1024


def partial_folder(out: Path) -> Path:
    """Return the folder in which the pack `out` is made."""
    return out.parent / f"{out.name}.partial"


@contextlib.contextmanager
def staging(out: Path, *, resume: bool, overwrite: bool) -> Iterator[Staging]:
    """Lock the folder in which the pack `out` is made, with the complete bundles of earlier runs.

    With `resume` these are all bundles of `out` and of an interrupted run whose files have the
    recorded hashes; everything else in the folder is removed. On an error the folder stays with
    the complete bundles, unless it has none.
    """
    check_free(out, overwrite=overwrite or (resume and is_pack(out)))
    folder = partial_folder(out)
    _check_left_over(folder, resume=resume or overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, out):
        made = Staging(out, folder)
        if resume:
            made.adopt()
        made.record()
        made.sweep()
        try:
            yield made
        finally:
            if folder.exists():  # else it has become the pack
                made.sweep()
                if not made.bundles:
                    shutil.rmtree(folder)


class Staging:
    """The complete bundles of a pack in the making, and their index on disk.

    Attributes:
        folder: the folder that holds them.
        bundles: name -> entry in the index of the pack.
        fallback: name of the bundle for languages that the earlier pack lacked, or None.
    """

    def __init__(self, out: Path, folder: Path) -> None:
        self.folder = folder
        self.bundles: dict[str, PackedBundle] = {}
        self.fallback: str | None = None
        self._out = out

    def adopt(self) -> None:
        """Take over every complete bundle of an earlier run and of the pack itself."""
        for folder, file in (
            (self.folder, _PROGRESS),
            (self.folder, PACK_FILE),  # interrupted before the folder was renamed
            (self._out, PACK_FILE),
        ):
            if not (folder / file).is_file() or not (folder / file).stat().st_size:
                continue
            index = _read_index(folder, file)
            if index is None:
                continue
            self.fallback = self.fallback or index.fallback
            for name, entry in index.bundles.items():
                if name not in self.bundles and _is_whole(folder, name, entry):
                    if folder != self.folder:
                        _copy_bundle(folder / name, self.folder / name)
                    self.bundles[name] = entry

    def add(self, name: str, source: dict[str, Any]) -> None:
        """Record that the bundle `name`, made from `source`, is complete."""
        self.bundles[name] = PackedBundle.describe(self.folder, name, source)
        self.record()

    def drop(self, name: str) -> None:
        """Remove the bundle `name`, if there is one."""
        if self.bundles.pop(name, None):
            self.record()
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def sweep(self) -> None:
        """Remove everything that is not part of a complete bundle."""
        for path in self.folder.iterdir():
            if path.name not in self.bundles and path.name != _PROGRESS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def finish(self, order: Sequence[str], fallback: str | None = None) -> PackIndex:
        """Rename the folder to the pack; the bundles of `order` come first in its index.

        `fallback` names the bundle for languages that the pack lacks, if there is to be one.
        """
        self.sweep()  # a killed process may have left something
        names = [name for name in order if name in self.bundles]
        names += [name for name in self.bundles if name not in names]
        entries = {
            name: PackedBundle.describe(self.folder, name, self.bundles[name].source)
            for name in names
        }
        index = PackIndex(entries, default=names[0], fallback=fallback, **made_now())
        index.write(self.folder)
        (self.folder / _PROGRESS).unlink()
        replace_folder(self.folder, self._out)
        for old in self._out.parent.glob(f".{glob.escape(self._out.name)}.old.*"):
            shutil.rmtree(old)  # left by a run that was killed at this very point
        return index

    def record(self) -> None:
        """Write the index of the complete bundles, or an empty file to mark the folder as ours."""
        if self.bundles:
            PackIndex(self.bundles, default=next(iter(self.bundles))).write(self.folder, _PROGRESS)
        else:
            (self.folder / _PROGRESS).write_bytes(b"")


def link_identical(bundles: Sequence[Path]) -> int:
    """Make identical files of several bundles one file on disk, if the file system can.

    Every bundle stays complete: when it is copied elsewhere, a link becomes a file. Files beside a
    graph are left alone: a graph may have them as external data, and onnx refuses to load external
    data with several hard links. Return the bytes saved by links, made now or before.
    """
    first: dict[str, Path] = {}
    saved = 0
    for folder in bundles:
        manifest = Manifest.read(folder)
        graphs = {(folder / variant.file).parent for variant in manifest.variants.values()}
        for name, record in manifest.files.items():
            path = folder / name
            if record.bytes < _SMALLEST or path.parent in graphs:
                continue
            known = first.setdefault(record.sha256, path)
            if known != path and (path.samefile(known) or _link(known, path, folder.parent)):
                saved += record.bytes
    return saved


def _link(source: Path, path: Path, scratch: Path) -> bool:
    """Replace `path` by a hard link to `source`, made in the folder `scratch`, if possible."""
    temporary = Path(tempfile.mkdtemp(prefix=".link.", dir=scratch))
    try:
        os.link(source, temporary / path.name)
        (temporary / path.name).replace(path)
    except OSError:  # a file system without hard links, or a file with too many
        return False
    finally:
        shutil.rmtree(temporary)
    return True


def _check_left_over(folder: Path, *, resume: bool) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not any((folder / name).is_file() for name in (_PROGRESS, PACK_FILE)):
        raise OutputExistsError(f"{folder} is in the way, and not of an export: move it")
    if not resume:
        raise left_over(folder)


@contextlib.contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    if not HAS_LOCKS:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not lock(descriptor):
            raise OutputExistsError(f"another process is writing {out}: wait for it")
        yield
    finally:
        os.close(descriptor)


def _read_index(folder: Path, file: str) -> PackIndex | None:
    try:
        return PackIndex.read(folder, file)
    except BundleError as error:
        logger.warning("nothing is kept of an earlier run: %s", error)
        return None


def _is_whole(folder: Path, name: str, entry: PackedBundle) -> bool:
    try:
        if entry.path != name:
            return False  # not a pack that we wrote: others may have another layout
        entry.verify(folder)
    except BundleError as error:
        logger.warning("%s is made again: %s", name, error)
        return False
    return True


def _copy_bundle(source: Path, target: Path) -> None:
    refuse_links_out(source)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=lambda a, b: link_or_copy(Path(a), Path(b)))
