"""Identify a model by the contents of all files that decide its vectors.

This is the only identity: the cache of vectors, the reload of a server, resumed jobs, compiled
graphs and the records of finished work all ask for it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from mirror_rt.bundle.declarations import DOCUMENT
from mirror_rt.bundle.description import STORED, describe_folder
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.onnx_files import onnx_variants
from mirror_rt.bundle.pack_index import PackIndex, is_pack, visible_files
from mirror_rt.bundle.static_files import FILES
from mirror_rt.errors import BundleError
from mirror_rt.io.atomic import files_sha256
from mirror_rt.io.file_states import content_sha256


def digest_of(folder: Path, *, verified: bool = True) -> str:
    """Return a digest that changes with any file that decides the vectors of a model or a pack.

    Args:
        folder: a bundle, a pack, plain ONNX files, or a static encoder.
        verified: whether the files are compared with the hashes of their manifest when they are
            loaded. That of a bundle then is the SHA-256 of its mirror.json, and that of a pack of
            its pack.json, which hold the hashes of all files; else, and without a manifest, all
            contents are read.

    Raises:
        BundleError: the folder is none of these.
    """
    if verified and is_pack(folder):
        return content_sha256(folder / Layout.pack)
    if verified and (folder / Layout.manifest).exists():
        Manifest.read(folder, STORED)  # its error says what the folder is instead
        return content_sha256(folder / Layout.manifest)
    return files_sha256(sorted(deciding_files(folder)), folder, content_sha256)


def graph_digest(graph: Path) -> str:
    """Return a digest of a graph and of the files that it names; BundleError if unreadable."""
    try:
        beside = [file for file in sorted(graph.parent.iterdir()) if file.is_file()]
        files = sorted({graph, *_named_in(graph, beside)})
        return files_sha256(files, graph.parent, content_sha256)
    except OSError as error:
        raise BundleError(f"{graph} cannot be read: {error}") from error


def deciding_files(folder: Path) -> list[Path]:
    """Return the files that can decide a vector of a model, or of the models of a pack.

    Of plain ONNX files these are the JSON files, the graphs, and each file whose name is in a
    graph: it may hold weights.
    """
    if is_pack(folder):
        entries = PackIndex.read(folder).bundles.values()
        return [folder / Layout.pack, *(f for e in entries for f in _recorded(folder / e.path))]
    if (folder / Layout.manifest).exists():
        return _recorded(folder)
    every = [folder / name for name in visible_files(folder)]
    graphs = {folder / variant.file for variant in onnx_variants(folder).values()}
    described = describe_folder(folder, route=DOCUMENT)  # queries may have no model
    is_static = described.is_static
    if not graphs and not described.weights and not is_static:
        Manifest.read(folder, None)  # its error says what the folder is instead
    found = {file for file in every if file.suffix == ".json"} | graphs
    if described.weights:
        found |= {file for file in every if file.suffix in (".safetensors", ".txt", ".metadata")}
    found |= {file for file in every if file.match("*_Dense/*.safetensors")}
    if is_static:
        return sorted(found.union(*(folder.glob(pattern) for pattern in FILES)))
    others = [file for file in every if file not in found]
    return sorted(found.union(*(_named_in(graph, others) for graph in graphs)))


def _recorded(folder: Path) -> list[Path]:
    """Return the files of a bundle; of one from a hub some may be absent."""
    names = [Layout.manifest, *Manifest.read(folder, STORED).files]
    return [folder / name for name in names if (folder / name).is_file()]


def _named_in(graph: Path, files: Iterable[Path]) -> set[Path]:
    """Return those of `files` whose names are in the bytes of a graph.

    The path of a file of weights is in the graph as it is, so none is missed.
    """
    if not graph.stat().st_size:
        return set()
    with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return {one for one in files if content.find(os.fsencode(one.name)) >= 0}
