"""What several bundles of a pack have in common, stored once: hard links between their folders.

Every bundle stays whole: copied away, a link becomes a file. Whole files are linked as they are.
A large weight that is the same in the graphs of two bundles (a frozen table of embeddings) is
first moved out of both, into a file beside each graph, as ONNX's external data must be; the file
has its SHA-256 as its name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from mirror_export.onnx_file import write_onnx
from mirror_rt.files import link_or_copy, new_folder, write_json
from mirror_rt.manifest import Layout, Manifest, record_files

__all__ = ["link_identical", "share_weights"]

# Smaller files are not worth a link: one edited in place would change in every bundle.
_SMALLEST_FILE = 64 * 1024
_SMALLEST_WEIGHT = 1_000_000
_SUFFIX = ".onnx_data"
_MOVED = re.compile(r"[0-9a-f]{64}" + re.escape(_SUFFIX))


def link_identical(bundles: Sequence[Path]) -> int:
    """Make identical files of several bundles one file on disk, where the file system can.

    Args:
        bundles: their folders; the manifests say which files are the same.

    Returns:
        Bytes that are stored once less, by links made now or before.
    """
    first: dict[str, Path] = {}
    saved = 0
    for folder in bundles:
        for name, record in Manifest.read(folder).files.items():
            path = folder / name
            if record.bytes < _SMALLEST_FILE or first.setdefault(record.sha256, path) == path:
                continue
            if path.samefile(first[record.sha256]) or _link(
                first[record.sha256], path, folder.parent
            ):
                saved += record.bytes
    return saved


def share_weights(bundles: Sequence[Path]) -> None:
    """Move weights that are in graphs of more than one bundle into files beside the graphs.

    A graph of more than 2 GB, which has a file for all of its weights, is left as it is.

    Raises:
        OSError: the disk is full; every bundle is as it was, or done.
    """
    owners: dict[str, set[Path]] = defaultdict(set)
    embedded: dict[Path, set[str]] = {}
    for folder in bundles:
        for graph in _graphs(folder):
            weights = dict(_large_weights(ir.load(graph)))
            for digest in weights:
                owners[digest].add(folder)
            embedded[graph] = {d for d, v in weights.items() if not _is_moved(v)}
    shared = {digest for digest, folders in owners.items() if len(folders) > 1}
    for folder in bundles:
        graphs = [graph for graph in _graphs(folder) if embedded[graph] & shared]
        if graphs:
            _move_out(folder, graphs, shared)


def _graphs(folder: Path) -> list[Path]:
    return sorted({folder / v.file for v in Manifest.read(folder).variants.values()})


def _large_weights(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """(SHA-256 of its numbers, initializer) of those that may be shared."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < _SMALLEST_WEIGHT:
            continue
        if _is_moved(value):
            assert isinstance(tensor, ir.ExternalTensor)
            yield Path(tensor.location).stem, value
        elif not isinstance(tensor, ir.ExternalTensor):
            yield hashlib.sha256(_numbers(tensor)).hexdigest(), value


def _is_moved(value: ir.Value) -> bool:
    tensor = value.const_value
    return isinstance(tensor, ir.ExternalTensor) and bool(_MOVED.fullmatch(str(tensor.location)))


def _numbers(tensor: ir.TensorProtocol) -> memoryview:
    """Little-endian, row by row, as ONNX stores them."""
    array = np.ascontiguousarray(tensor.numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


def _move_out(folder: Path, graphs: list[Path], shared: set[str]) -> None:
    """Write the bundle anew with the `shared` weights of `graphs` in files of their own."""
    manifest = Manifest.read(folder)
    # Never linked, because they are written: it would be into the bundle as it is, too.
    rewritten = {folder / Layout.manifest, *graphs, *map(_mapped, graphs)}
    with new_folder(folder, overwrite=True) as fresh:
        shutil.copytree(
            folder,
            fresh,
            dirs_exist_ok=True,
            ignore=lambda parent, names: [n for n in names if Path(parent) / n in rewritten],
            copy_function=lambda source, target: link_or_copy(Path(source), Path(target)),
        )
        for graph in graphs:
            target = fresh / graph.relative_to(folder)
            _write_without(graph, target, shared)
            if not _mapped(graph).exists():
                _mapped(target).unlink(missing_ok=True)
        manifest = dataclasses.replace(manifest, files=record_files(fresh))
        write_json(fresh / Layout.manifest, manifest.to_dict())


def _mapped(graph: Path) -> Path:
    return graph.with_name(Layout.mapped(graph.name))


def _write_without(graph: Path, target: Path, shared: set[str]) -> None:
    model = ir.load(graph)
    for digest, value in _large_weights(model):
        tensor = value.const_value
        if digest not in shared or _is_moved(value) or tensor is None:
            continue
        path = target.with_name(digest + _SUFFIX)
        if not path.exists():
            path.write_bytes(_numbers(tensor))
        value.const_value = ir.ExternalTensor(
            path.name,
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=tensor.shape,  # type: ignore[arg-type]  # of a constant: static
            name=value.name or "",
            base_dir=target.parent,
        )
    write_onnx(model, target)


def _link(source: Path, path: Path, scratch: Path) -> bool:
    """Replace `path` by a hard link to `source`, by way of the folder `scratch`, if that can be."""
    temporary = Path(tempfile.mkdtemp(prefix=".link.", dir=scratch))
    try:
        os.link(source, temporary / path.name)
        (temporary / path.name).replace(path)
    except OSError:  # a file system without hard links, or a file with too many
        return False
    finally:
        shutil.rmtree(temporary)
    return True
