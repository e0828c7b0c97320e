"""The index pack.json of a language pack, and the bundles of a folder: one, or those of a pack."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mirror_rt.bundle.json_document import read_document
from mirror_rt.bundle.manifest import Dimension, Layout, Manifest
from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.io.atomic import files_under, sha256, write_json
from mirror_rt.io.file_states import content_sha256
from mirror_rt.schema import Digest, InnerPath, Printable, build

PACK_FILE = Layout.pack
PACK_VERSION = 1
_FORMAT = "mirror_rt pack"


@dataclass(frozen=True, slots=True)
class PackedBundle:
    """The entry of one bundle in the index.

    Attributes:
        path: folder of the bundle, relative to the pack, with `/` between the parts.
        dimension: length of an embedding.
        manifest_sha256: SHA-256 of its mirror.json, which has the hashes of its other files.
        language: language tag; None if the bundle declares none.
        level: kind of strings it was tuned on: word, phrase or sentence; None if not tuned.
        base_model: name and revision of the model that was tuned.
        variants: names of its graphs.
        source: model that it was made from, and the options of its export.
        space: id of its vector space; None where its manifest has none.
    """

    path: InnerPath
    dimension: Dimension
    manifest_sha256: Digest
    language: Annotated[str, Printable] | None = None
    level: str | None = None
    base_model: dict[str, Any] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    source: dict[str, Any] = field(default_factory=dict)
    space: str | None = None

    @property
    def vector_space(self) -> str:
        """The id of the vector space; a bundle that declares none has a space of its own."""
        return self.space or self.manifest_sha256

    @classmethod
    def describe(cls, pack: Path, name: str, source: dict[str, Any]) -> PackedBundle:
        """Make the entry of the bundle `pack`/`name` from its manifest."""
        manifest, digest = Manifest.read(pack / name), sha256(pack / name / Layout.manifest)
        base = manifest.base_model
        return cls(path=name, manifest_sha256=digest, base_model=base, source=source,
                   **_told(manifest))  # fmt: skip

    def verify(self, pack: Path) -> Manifest:
        """Compare the bundle with this entry and its files with their hashes."""
        manifest = self.read_manifest(pack)
        manifest.verify(pack / self.path)
        return manifest

    def read_manifest(self, pack: Path) -> Manifest:
        """Read mirror.json of the bundle, which must be that of this entry and agree with it.

        Raises:
            BundleError: there is none, or it is damaged.
            BundleIntegrityError: it is another one, or this entry says something else.
        """
        path = pack / self.path / Layout.manifest
        manifest = Manifest.read(path.parent)
        if content_sha256(path) != self.manifest_sha256:
            raise BundleIntegrityError(
                f"{path} is not the one that {PACK_FILE} names: make it again"
            )
        for name, value in _told(manifest).items():
            if (said := getattr(self, name)) != value:
                raise BundleIntegrityError(
                    f"{pack / PACK_FILE} says {name} {said!r} of {self.path}, whose "
                    f"{Layout.manifest} says {value!r}: make it again"
                )
        return manifest


def _told(manifest: Manifest) -> dict[str, Any]:
    """Return the fields of an entry that repeat those of the bundle's manifest."""
    names = ("dimension", "language", "level", "space")
    return {name: getattr(manifest, name) for name in names} | {"variants": [*manifest.variants]}


@dataclass(frozen=True, slots=True)
class PackIndex:
    """The content of pack.json.

    Attributes:
        bundles: name -> bundle, in order; the name is the language if that is unique.
        default: name of the bundle for texts of which no language is given.
        fallback: name of the bundle for languages that the pack lacks; None to refuse them.
        generator: program that wrote the file, and its version.
        created: time of writing, in ISO 8601.
    """

    bundles: dict[Annotated[str, Printable], PackedBundle]
    default: str
    generator: str = ""
    created: str = ""
    fallback: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the format first."""
        return {"format": _FORMAT, "format_version": PACK_VERSION} | dataclasses.asdict(self)

    def write(self, folder: Path, file: str = PACK_FILE) -> None:
        """Write the index into `folder`, whole or not at all."""
        write_json(folder / file, self.to_dict())

    @classmethod
    def read(cls, folder: str | Path, file: str = PACK_FILE) -> PackIndex:
        """Read and check `folder`/pack.json, without looking at the bundles themselves."""
        folder = Path(folder)
        path = folder / file

        def make(values: dict[str, Any]) -> PackIndex:
            index: PackIndex = build(cls, values)
            index._check_consistent(folder)
            return index

        return read_document(path, make, noun="pack", expected=(_FORMAT,), version=PACK_VERSION)

    def _check_consistent(self, folder: Path) -> None:
        """Raise ValueError if a default is not a bundle, or a path leads out of the pack."""
        for name, value in (("default", self.default), ("fallback", self.fallback)):
            if value not in self.bundles and (name, value) != ("fallback", None):
                raise ValueError(f"{name} is {value!r}, expected one of {list(self.bundles)}")
        inside = folder.resolve()
        for name, bundle in self.bundles.items():
            try:
                found = (folder / bundle.path).resolve()
                if found.is_symlink():  # which Python 3.13 and newer return as it is
                    raise OSError("a link to itself")
            except (OSError, RuntimeError) as error:  # for example a link to itself
                raise ValueError(f"bundles.{name}.path is {bundle.path!r}: {error}") from error
            if not found.is_relative_to(inside):
                raise ValueError(
                    f"bundles.{name}.path is {bundle.path!r}, which leads out of the pack"
                )


def is_pack(folder: Path) -> bool:
    """Return whether `folder` is a pack, and not itself a bundle."""
    return (folder / PACK_FILE).is_file() and not (folder / Layout.manifest).is_file()


def refuse_pack(path: Path) -> None:
    """Raise BundleError if `path` is a pack, or names a bundle that a pack does not have."""
    if is_pack(path):
        names = list(PackIndex.read(path).bundles)
        raise BundleError(
            f"{path} is a pack of {len(names)} bundles: name one of them, {path / names[0]} for "
            f"example (it has {', '.join(names)}), or a language: LanguagePack, or encode --lang"
        )
    if not path.exists() and is_pack(path.parent):
        names = list(PackIndex.read(path.parent).bundles)
        raise BundleError(f"the pack {path.parent} has no {path.name}: it has {', '.join(names)}")


def visible_files(folder: Path) -> list[str]:
    """Return the sorted paths of all files in `folder` that are not hidden or in hidden folders.

    Files and folders that are still being written have hidden names until they are complete.
    """
    paths = [path.relative_to(folder) for path in files_under(folder) if path.is_file()]
    return sorted(p.as_posix() for p in paths if not any(x.startswith(".") for x in p.parts))


def refuse_links_out(folder: Path) -> None:
    """Check that a folder has no link out of it, before its files are sent or copied elsewhere.

    Raises:
        BundleError: it has one; its target might be a secret of this machine.
    """
    inside = folder.resolve()
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.is_symlink() and not _leads_into(inside, path):
                raise BundleError(
                    f"{path} is a link to {str(path.readlink())!r}, outside of {folder}: put a "
                    "copy of the file in its place, or remove it"
                )


def _leads_into(folder: Path, link: Path) -> bool:
    try:
        found = link.resolve(strict=True)
    except (OSError, RuntimeError):  # it leads to nothing, or to itself
        return False
    return found.is_relative_to(folder)


def read_manifests(folder: Path) -> dict[str, Manifest]:
    """Read the manifest of each bundle of `folder`, by its path inside it: `.` for itself.

    Those of a pack must be the ones that its index names.
    """
    if is_pack(folder):
        entries = PackIndex.read(folder).bundles.values()
        return {entry.path: entry.read_manifest(folder) for entry in entries}
    return {".": Manifest.read(folder, None)}


def read_bundles(folder: Path) -> dict[str, Manifest]:
    """Read and verify each bundle of `folder`: path inside it (`.` for itself) -> manifest."""
    if not any((folder / index).is_file() for index in (Layout.manifest, Layout.pack)):
        said = "is neither a bundle nor a pack" if folder.is_dir() else "is no folder"
        raise BundleError(f"{folder} {said}: expected {Layout.manifest} or {Layout.pack} in it")
    found = read_manifests(folder)
    for path, manifest in found.items():
        manifest.verify(folder / path)
    return found
