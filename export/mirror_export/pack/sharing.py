"""Files that several bundles of a pack have in common, stored once: hard links between folders.

Every bundle stays whole: copied away, a link becomes a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mirror_rt.bundle.manifest import Manifest

__all__ = ["link_identical"]

# Smaller files are not worth a link: one edited in place would change in every bundle.
_SMALLEST = 64 * 1024


def link_identical(bundles: Sequence[Path]) -> int:
    """Make identical files of several bundles one file on disk, where the file system can.

    Not the files beside a graph: a graph may have them as external data, which onnx refuses to
    load where it has several hard links.

    Args:
        bundles: their folders; the manifests say which files are the same.

    Returns:
        Bytes that are stored once less, by links made now or before.
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
