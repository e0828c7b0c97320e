"""The content of a repository of a model hub: one bundle, or a language pack of several."""

from __future__ import annotations

from pathlib import Path

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.errors import BundleError


def visible_files(folder: Path) -> list[str]:
    """Return the sorted paths of all files in `folder` that are not hidden or in hidden folders.

    Files and folders that are still being written have hidden names until they are complete.
    """
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(p.as_posix() for p in paths if not any(x.startswith(".") for x in p.parts))


def bundle_folders(folder: Path) -> list[Path]:
    """Return the folders of the bundles in `folder`: itself, or those of a pack.

    Raises:
        BundleError: it is neither a bundle nor a pack.
    """
    if (folder / Layout.manifest).is_file():
        return [folder]
    if not (folder / Layout.pack).is_file():
        what = "is neither a bundle nor a pack" if folder.is_dir() else "is no folder"
        raise BundleError(f"{folder} {what}: expected {Layout.manifest} or {Layout.pack} in it")
    return [folder / entry.path for entry in PackIndex.read(folder).bundles.values()]


def read_bundles(folder: Path) -> dict[str, Manifest]:
    """Read and verify each bundle of `folder`: path inside it (`.` for itself) -> manifest.

    Raises:
        BundleError: the folder is not a bundle or pack, or a bundle in it is incomplete or changed.
    """
    if is_pack(folder):
        entries = PackIndex.read(folder).bundles.values()
        return {entry.path: entry.verify(folder) for entry in entries}
    (bundle,) = bundle_folders(folder)
    manifest = Manifest.read(bundle)
    manifest.verify(bundle)
    return {".": manifest}
