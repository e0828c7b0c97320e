"""Map the bundles of a pack into one vector space, by dictionaries and orthogonal Procrustes."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirror_export.pack.dictionary_maps import Alignment, Dictionary, DictionaryMaps
from mirror_export.pack.mapped_bundle import copy_mapped
from mirror_rt import Manifest
from mirror_rt.bundle.json_document import made_now
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.pack_index import PackedBundle, PackIndex, refuse_links_out
from mirror_rt.errors import ConfigError
from mirror_rt.io.atomic import check_free, link_or_copy, new_folder, sha256, write_json
from mirror_rt.languages.routing import Router
from mirror_rt.languages.tags import need_language

__all__ = ["Alignment", "align_pack"]

logger = logging.getLogger("mirror_export")

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
    named = [_by_bundle(Dictionary.read(one), bundles, pack) for one in dictionaries]
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


def _by_bundle(one: Dictionary, bundles: Mapping[str, str], pack: Path) -> Dictionary:
    """Return a dictionary with the names of bundles in place of its languages."""
    source, target = (
        need_language(tag, bundles, f"{one.path}: {pack}") for tag in (one.source, one.target)
    )
    return dataclasses.replace(one, source=source, target=target)


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
