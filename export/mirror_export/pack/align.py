"""Map the bundles of a pack into one vector space, by dictionaries and orthogonal Procrustes."""

from __future__ import annotations

import dataclasses
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_export.pack.mapped_bundle import copy_mapped
from mirror_rt import Encoder, Manifest
from mirror_rt.bundle.json_document import made_now
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.pack_index import PackedBundle, PackIndex, refuse_links_out
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.induction import csls_nearest, orthogonal_procrustes
from mirror_rt.evaluation.readers.tables import read_lexicon
from mirror_rt.io.atomic import check_free, link_or_copy, new_folder, sha256, write_json
from mirror_rt.languages.routing import Router
from mirror_rt.languages.tags import need_language

logger = logging.getLogger("mirror_export")

Matrix = npt.NDArray[np.float64]

_PAIR = re.compile(r"(?<![A-Za-z])([a-z]{2,3})-([a-z]{2,3})(?![A-Za-z])")
_HELD_OUT = 10  # one word in ten measures the map instead of deciding it
_COMPARED = 64  # words on which an aligned graph is compared with the one before


def align_pack(
    pack: Path,
    dictionaries: Sequence[str],
    *,
    out: Path | None = None,
    to: str | None = None,
    overwrite: bool = False,
) -> list[Alignment]:
    """Map every bundle of a pack that a dictionary reaches into the space of one of them.

    A dictionary may reach a language through another: fr-it after en-fr. The map is folded into
    the graphs, so that the bundles load as before. One that no dictionary reaches keeps its space.

    Args:
        pack: folder of the pack.
        dictionaries: see `Dictionary.read`; several of the same languages are joined.
        out: folder to write; None to replace the pack, once all is done.
        to: language whose space the others are mapped into; None for the default of the pack.
        overwrite: replace `out` if it exists.

    Raises:
        BundleError: `pack` is not a pack, or is damaged.
        ConfigError: a language is not in the pack, no dictionary reaches anything, vectors differ
            in length, or a bundle cannot be mapped.
        DataError: a dictionary cannot be used, or has fewer words than the vectors have dimensions.
        OutputExistsError: `out` exists.
    """
    target = pack if out is None else out
    check_free(target, overwrite=overwrite or out is None)
    refuse_links_out(pack)
    index = PackIndex.read(pack)
    bundles = Router(pack, index).bundles
    named = []  # with the names of bundles in place of languages
    for one in map(Dictionary.read, dictionaries):
        a, b = (
            need_language(tag, bundles, f"{one.path}: {pack}") for tag in (one.source, one.target)
        )
        named.append(dataclasses.replace(one, source=a, target=b))
    pivot = index.default if to is None else need_language(to, bundles, f"to: {pack}")
    for entry in index.bundles.values():
        entry.verify(pack)
    maps = DictionaryMaps(pack, index, named)
    found = {one.name: one for one in maps.fit(pivot)}
    if not found:
        raise ConfigError(
            f"no dictionary leads from {pivot} to another vector space of {pack}, which has "
            f"{', '.join(index.bundles)}"
        )
    used = [{"name": one.path.name, "sha256": sha256(one.path)} for one in named]
    space = index.bundles[pivot].vector_space
    with new_folder(target, overwrite=overwrite or out is None) as folder:
        entries = {}
        for name, entry in index.bundles.items():
            source, copy = pack / entry.path, folder / entry.path
            copy.mkdir(parents=True)
            if name in found:
                alignment = {"to": pivot, "entries": found[name].entries, "dictionaries": used}
                copy_mapped(source, copy, maps.by_name[name], maps.words(name)[:_COMPARED],
                            space=space, alignment=alignment)  # fmt: skip
            else:
                _copy(source, copy, space if name in maps.reached else None)
            entries[name] = PackedBundle.describe(folder, entry.path, entry.source)
        dataclasses.replace(index, bundles=entries, **made_now()).write(folder)
    for name in sorted(index.bundles.keys() - maps.reached):
        logger.warning("%s keeps a vector space of its own: no dictionary reaches it", name)
    return list(found.values())


def _copy(source: Path, target: Path, space: str | None) -> None:
    """Copy a bundle, with the id of its space where it declares none."""
    manifest = Manifest.read(source)
    graphs = {Path(variant.file).parent for variant in manifest.variants.values()}
    for name in (*manifest.files, Layout.card, Layout.manifest):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            # onnx refuses to read the weights of a graph from a file with several hard links
            write = shutil.copyfile if Path(name).parent in graphs else link_or_copy
            write(source / name, target / name)
    if space is not None and manifest.space is None:
        changed = dataclasses.replace(manifest, space=space)
        write_json(target / Layout.manifest, changed.to_dict())


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Pairs of words in two languages, and the file that they come from."""

    path: Path
    source: str
    target: str
    entries: list[tuple[str, str]]

    @classmethod
    def read(cls, given: str) -> Dictionary:
        """Read `FILE`, whose name has the languages (en-fr.tsv), or `en-fr=FILE`."""
        languages, equals, file = given.rpartition("=")
        path = Path(file if equals and not Path(given).exists() else given)
        pair = _PAIR.search(languages if path != Path(given) else path.name)
        if pair is None:
            raise ConfigError(
                f"dictionary {given}: its name does not say the languages: expected en-fr.tsv or "
                "en-fr=FILE, for example"
            )
        return cls(path, pair[1], pair[2], read_lexicon(path))


@dataclass(frozen=True, slots=True)
class Alignment:
    """The report on how the bundle of a language was mapped.

    Attributes:
        name: bundle that was mapped.
        to: bundle whose space it was mapped into.
        entries: dictionary entries that the map was fitted on.
        before: share of the held-out words whose nearest neighbour by CSLS is a translation.
        after: the same with a map fitted on the other words.
        tested: number of held-out words.
    """

    name: str
    to: str
    entries: int
    before: float
    after: float
    tested: int


class DictionaryMaps:
    """Fits the maps into the space of one bundle, one language after another.

    The languages of the dictionaries are names of bundles of the pack.

    Attributes:
        by_name: the maps found so far, orthogonal, float64 [D, D]: vectors are rows before it.
        reached: the bundles whose vectors are in the space now.
    """

    def __init__(self, pack: Path, index: PackIndex, dictionaries: Sequence[Dictionary]) -> None:
        self._pack, self._index, self._dictionaries = pack, index, dictionaries
        self._vectors: dict[str, dict[str, Matrix]] = {}
        self.by_name: dict[str, Matrix] = {}
        self.reached: set[str] = set()

    def fit(self, pivot: str) -> Iterator[Alignment]:
        """Yield each language as dictionaries reach it from the bundle `pivot`."""
        space = self._index.bundles[pivot].vector_space
        self.reached = {n for n, one in self._index.bundles.items() if one.vector_space == space}
        while (name := self._next()) is not None:
            entries = [
                (a, b, d.target) if d.source == name else (b, a, d.source)
                for d in self._dictionaries
                if name in (d.source, d.target) and self.reached & {d.source, d.target}
                for a, b in d.entries
            ]
            yield self._fit_one(name, pivot, entries)
            self.reached.add(name)

    def words(self, name: str) -> list[str]:
        """Return the words of a bundle's language in the dictionaries, sorted."""
        found = {a for d in self._dictionaries if d.source == name for a, _ in d.entries}
        found |= {b for d in self._dictionaries if d.target == name for _, b in d.entries}
        return sorted(found)

    def _next(self) -> str | None:
        """Return the next bundle that a dictionary joins to those reached."""
        for one in self._dictionaries:
            beyond = {one.source, one.target} - self.reached
            if len(beyond) == 1 and one.source != one.target:
                return beyond.pop()
        return None

    def _fit_one(self, name: str, pivot: str, entries: list[tuple[str, str, str]]) -> Alignment:
        """Fit the map of a bundle to entries (word, translation, bundle of the translation)."""
        own = self._of(name)
        size, wanted = (self._index.bundles[one].dimension for one in (name, pivot))
        if size != wanted:
            raise ConfigError(
                f"{name} has vectors of {size} dimensions and {pivot} of {wanted}: only spaces of "
                "the same length can be aligned"
            )
        words = sorted({word for word, _, _ in entries})
        held = set(words[::_HELD_OUT])
        if len(words) - len(held) < size:
            raise DataError(
                f"the dictionaries have {len(words)} words of {name}, of which a tenth is held "
                f"out; a map of {size} dimensions needs more words than that: add entries"
            )
        x = np.array([own[word] for word, _, _ in entries])
        z = np.array([self._mapped(other, word) for _, word, other in entries])
        test = np.array([word in held for word, _, _ in entries])
        trial = orthogonal_procrustes(x[~test], z[~test])
        before, after = (_accuracy(vectors, z, entries, held) for vectors in (x, x @ trial))
        self.by_name[name] = orthogonal_procrustes(x, z)
        return Alignment(name, pivot, len(entries), before, after, len(held))

    def _mapped(self, name: str, word: str) -> Matrix:
        vector = self._of(name)[word]
        return vector @ self.by_name[name] if name in self.by_name else vector

    def _of(self, name: str) -> dict[str, Matrix]:
        """Return the unit vectors of all words of a bundle's language."""
        if name not in self._vectors:
            words = self.words(name)
            with Encoder.load(self._pack / self._index.bundles[name].path) as encoder:
                vectors = encoder.encode(words, normalize_embeddings=True).astype(np.float64)
            self._vectors[name] = dict(zip(words, vectors, strict=True))
        return self._vectors[name]


def _accuracy(x: Matrix, z: Matrix, entries: list[tuple[str, str, str]], held: set[str]) -> float:
    """Return the share of held-out words whose nearest word by CSLS is one of its translations."""
    gold: dict[str, set[str]] = {}
    for word, translation, _ in entries:
        gold.setdefault(word, set()).add(translation)
    source = {word: row for row, (word, _, _) in enumerate(entries)}
    target = {word: row for row, (_, word, _) in enumerate(entries)}
    asked = np.array([i for i, word in enumerate(source) if word in held])
    nearest = csls_nearest(x[list(source.values())], z[list(target.values())], asked)
    queries, answers = [word for word in source if word in held], list(target)
    right = [answers[i] in gold[word] for word, i in zip(queries, nearest, strict=True)]
    return float(np.mean(right))
