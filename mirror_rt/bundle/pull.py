"""Pull from a model hub into a folder, whole or not at all, with every file checked."""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_rt.bundle.hub import Repository, is_hub_name
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.pack_index import PackIndex, is_pack, read_manifests
from mirror_rt.bundle.push import LICENSES
from mirror_rt.errors import BundleError, BundleIntegrityError, ConfigError, HubError
from mirror_rt.io.atomic import check_free, check_space, link_or_copy, new_folder, write_json
from mirror_rt.system import names_trouble

# Smaller files are copied rather than linked, because editing a link changes it in every bundle.
_SMALLEST_LINK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a download: its commit, the number of files, and their total bytes."""

    commit: str
    files: int
    bytes: int


def pull(
    name: str,
    out: Path,
    *,
    revision: str | None = None,
    variants: Sequence[str] | None = None,
    offline: bool = False,
    overwrite: bool = False,
) -> Pulled:
    """Download a bundle or a language pack from a model hub into the folder `out`.

    Files that were transferred as a whole stay in the hub's cache, so a second try resumes there.
    `variants` are the graphs of a bundle to keep, also in its manifest; None for all. Where a file
    is missing or differs from its hash, nothing is written.
    """
    if not is_hub_name(name):
        raise ConfigError(f"{name!r} is no name on a hub: expected owner/name")
    check_free(out, overwrite=overwrite)
    snapshot, files = _download(Repository(name, revision, offline, HubError), variants)
    where = f"{name} at commit {snapshot.name[:12]}"
    if lost := [file for file in files if not (snapshot / file).is_file()]:
        raise BundleIntegrityError(f"{where} is incomplete: {lost[0]} is missing")
    check_space(out, sum(blob.stat().st_size for blob in {(snapshot / f).resolve() for f in files}))
    if trouble := names_trouble(files, out):
        raise BundleError(f"{where} cannot be written to {out}: {trouble}")
    with new_folder(out, overwrite=overwrite) as folder:
        _copy(snapshot, files, folder)
        if variants is not None:
            _keep(folder, variants)
        for path, manifest in read_manifests(folder).items():
            if damage := manifest.damage(folder / path):
                raise BundleIntegrityError(f"{where} is damaged, nothing was written: {damage}")
        size = sum((folder / file).stat().st_size for file in files)
    return Pulled(snapshot.name, len(files), size)


def _download(repository: Repository, variants: Sequence[str] | None) -> tuple[Path, list[str]]:
    """Return the snapshot in the hub's cache, and the requested paths in it."""
    top, name = [Layout.manifest, Layout.pack], repository.name
    folder = repository.download(top)
    if is_pack(folder):
        if variants is not None:
            raise ConfigError(f"{name} is a language pack: its variants come together")
        return _download_pack(repository.at(folder), folder)
    if not (folder / Layout.manifest).is_file():
        raise BundleError(
            f"{name} holds neither a bundle nor a pack: it has no {' or '.join(top)}; "
            f"{to_export(name)}"
        )
    folder = repository.download_graphs(folder, variants)
    card = [Layout.card] if (folder / Layout.card).is_file() else []
    return folder, [Layout.manifest, *card, *Manifest.read(folder, None).files_of(variants)]


def _download_pack(repository: Repository, folder: Path) -> tuple[Path, list[str]]:
    """Return the snapshot of a pack, and the paths in it that its index and manifests list."""
    entries = PackIndex.read(folder).bundles.values()
    wanted = [Layout.pack, *(f"{entry.path}/{Layout.manifest}" for entry in entries)]
    fetched = repository.download(map(glob.escape, wanted))
    records = {
        f"{path}/{file}": record
        for path, manifest in read_manifests(fetched).items()
        for file, record in manifest.files.items()
    }
    repository.check_sizes(fetched, records)
    wanted += records
    cards = [Layout.card, *(f"{entry.path}/{Layout.card}" for entry in entries)]
    fetched = repository.download([*map(glob.escape, [*wanted, *cards]), *LICENSES])
    free = [path.name for pattern in LICENSES for path in fetched.glob(pattern)]
    return fetched, wanted + [file for file in [*cards, *free] if (fetched / file).is_file()]


def _copy(snapshot: Path, files: list[str], folder: Path) -> None:
    """Copy files out of the cache; a file that several bundles of a pack share stays one file."""
    copies: dict[Path, Path] = {}
    for file in files:
        blob, target = (snapshot / file).resolve(), folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        first = copies.setdefault(blob, target)
        if first != target and blob.stat().st_size >= _SMALLEST_LINK:
            link_or_copy(first, target)
        else:
            shutil.copyfile(blob, target)


def _keep(folder: Path, variants: Sequence[str]) -> None:
    """Remove the other variants from a manifest, and keep unknown fields of later versions."""
    path = folder / Layout.manifest
    files = Manifest.read(folder, None).files_of(variants)
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    values["variants"] = {n: v for n, v in values["variants"].items() if n in variants}
    values["files"] = {n: record for n, record in values["files"].items() if n in files}
    if (native := values.get("native")) and native["file"] not in files:
        del values["native"]
    write_json(path, values)
