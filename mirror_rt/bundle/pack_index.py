"""pack.json: a language pack, the index of several bundles in one folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, get_type_hints

from mirror_rt.bundle.json_document import is_a, read_document
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.io.atomic import sha256, write_json

__all__ = ["PACK_FILE", "PACK_VERSION", "PackIndex", "PackedBundle", "is_pack", "refuse_pack"]

PACK_FILE = Layout.pack
PACK_VERSION = 1
_FORMAT = "mirror_rt pack"


@dataclass(frozen=True, slots=True)
class PackedBundle:
    """What the index says of one bundle.

    Attributes:
        path: its folder, relative to the pack, with `/` between the parts.
        dimension: length of an embedding.
        manifest_sha256: of its mirror.json, which holds the hashes of its other files.
        language: tag, None where the bundle declares none.
        level: what it was tuned on: word, phrase or sentence; None where it was not.
        base_model: name and revision of the model that was tuned.
        variants: names of its graphs.
        source: what it was made from, and with which options.
    """

    path: str
    dimension: int
    manifest_sha256: str
    language: str | None = None
    level: str | None = None
    base_model: dict[str, Any] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    source: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def describe(cls, pack: Path, name: str, source: dict[str, Any]) -> PackedBundle:
        """Make the entry of the bundle `pack`/`name` from its manifest."""
        manifest = Manifest.read(pack / name)
        return cls(
            path=name,
            dimension=manifest.dimension,
            manifest_sha256=sha256(pack / name / Layout.manifest),
            language=manifest.language,
            level=manifest.level,
            base_model=manifest.base_model,
            variants=list(manifest.variants),
            source=source,
        )

    def verify(self, pack: Path) -> Manifest:
        """Compare the bundle with this entry and its files with their hashes.

        Raises:
            BundleError: the bundle is absent, incomplete or changed, or not the one of the index.
        """
        folder = pack / self.path
        manifest = Manifest.read(folder)
        self.check_manifest(pack)
        manifest.verify(folder)
        return manifest

    def check_manifest(self, pack: Path) -> None:
        """Raise BundleIntegrityError where mirror.json of the bundle is not that of this entry."""
        path = pack / self.path / Layout.manifest
        if sha256(path) != self.manifest_sha256:
            raise BundleIntegrityError(
                f"{path} is not the one that {PACK_FILE} names: make it again"
            )


@dataclass(frozen=True, slots=True)
class PackIndex:
    """The content of pack.json.

    Attributes:
        bundles: name -> bundle, in order; the name is the language where that is unique.
        default: name of the bundle to use where none is asked for.
        generator: program and version that wrote it.
        created: when, ISO 8601.
    """

    bundles: dict[str, PackedBundle]
    default: str
    generator: str = ""
    created: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the format first."""
        return {"format": _FORMAT, "format_version": PACK_VERSION} | dataclasses.asdict(self)

    def write(self, folder: Path, file: str = PACK_FILE) -> None:
        """Write it into `folder`, whole or not at all."""
        write_json(folder / file, self.to_dict())

    @classmethod
    def read(cls, folder: str | Path, file: str = PACK_FILE) -> PackIndex:
        """Read and check `folder`/pack.json; the bundles themselves are not looked at.

        Raises:
            BundleError: no such folder or index, one of another format, a field is missing or of
                a wrong type, or a path leads out of the pack.
            BundleVersionError: the format version is newer than this one.
        """
        folder = Path(folder)
        path = folder / file
        values = read_document(path, noun="pack", expected=_FORMAT, version=PACK_VERSION)
        try:
            return _from_dict(folder, values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(f"{path} is damaged: {error!r}") from error

    def bundle(self, name: str | None = None) -> PackedBundle:
        """Return the entry of that name; None for the default.

        Raises:
            BundleError: the pack has none of that name.
        """
        found = self.bundles.get(self.default if name is None else name)
        if found is None:
            raise BundleError(f"no bundle {name!r}: this pack has {', '.join(self.bundles)}")
        return found


def is_pack(folder: Path) -> bool:
    """Whether `folder` is a pack, and not itself a bundle."""
    return (folder / PACK_FILE).is_file() and not (folder / Layout.manifest).is_file()


def refuse_pack(path: Path) -> None:
    """Raise BundleError where `path` is a pack, or would be a bundle of one that lacks it."""
    if is_pack(path):
        names = list(PackIndex.read(path).bundles)
        raise BundleError(
            f"{path} is a pack of {len(names)} bundles: name one of them, {path / names[0]} for "
            f"example (it has {', '.join(names)})"
        )
    if not path.exists() and is_pack(path.parent):
        names = list(PackIndex.read(path.parent).bundles)
        raise BundleError(f"the pack {path.parent} has no {path.name}: it has {', '.join(names)}")


def _from_dict(folder: Path, values: dict[str, Any]) -> PackIndex:
    entries = {name: _bundle(folder, entry) for name, entry in values["bundles"].items()}
    known = {field.name for field in dataclasses.fields(PackIndex)}
    texts = {name: value for name, value in values.items() if name in known - {"bundles"}}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}, expected a string")
    index = PackIndex(entries, **texts)
    if index.default not in entries:
        raise ValueError(f"the default {index.default!r} is none of {', '.join(entries)}")
    return index


def _bundle(folder: Path, values: dict[str, Any]) -> PackedBundle:
    hints = get_type_hints(PackedBundle)
    values = {name: value for name, value in values.items() if name in hints}
    for name, value in values.items():
        if not is_a(value, hints[name]):
            raise ValueError(f"{name} of a bundle is {value!r}, expected {hints[name]}")
    entry = PackedBundle(**values)
    if not all(isinstance(name, str) for name in entry.variants):
        raise ValueError(f"variants of a bundle are {entry.variants!r}, expected names")
    if entry.dimension < 1:
        raise ValueError(f"dimension of a bundle is {entry.dimension}, expected at least 1")
    _check_inside(folder, entry.path)
    return entry


def _check_inside(folder: Path, path: str) -> None:
    """Refuse a path that is not a folder below the pack, by its form or through a link."""
    parts = PurePosixPath(path).parts
    outside = not parts or path.startswith("/") or ".." in parts or "\\" in path or ":" in path
    if outside or not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"the path {path!r} leads out of the pack")
