"""What a repository of a model hub holds: one bundle, or a language pack of several."""

from __future__ import annotations

from pathlib import Path

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.errors import BundleError

__all__ = ["bundle_folders", "read_bundles", "visible_files"]


def visible_files(folder: Path) -> list[str]:
    """Paths inside `folder`, sorted, of every file that is neither hidden nor in a hidden folder.

    What is being written has a hidden name until it is whole.
    """
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(p.as_posix() for p in paths if not any(x.startswith(".") for x in p.parts))


def bundle_folders(folder: Path) -> list[Path]:
    """The bundle that `folder` is, or those that it holds as a pack.

    Raises:
        BundleError: it is neither.
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
        BundleError: not a bundle or pack, or a bundle in it is incomplete or changed.
    """
    if is_pack(folder):
        entries = PackIndex.read(folder).bundles.values()
        return {entry.path: entry.verify(folder) for entry in entries}
    (bundle,) = bundle_folders(folder)
    manifest = Manifest.read(bundle)
    manifest.verify(bundle)
    return {".": manifest}
