"""Store files that several bundles of a pack have in common once, by hard links between folders.

Every bundle stays complete: when it is copied elsewhere, a link becomes a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mirror_rt.bundle.manifest import Manifest

# Smaller files are not worth a link, since one edited in place would change in every bundle.
_SMALLEST = 64 * 1024


def link_identical(bundles: Sequence[Path]) -> int:
    """Make identical files of several bundles one file on disk, if the file system can.

    Files beside a graph are left alone: a graph may have them as external data, and onnx refuses to
    load external data with several hard links. Return the bytes saved by links, made now or before.
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
    """Replace `path` by a hard link to `source`, made in the folder `scratch`, if possible."""
    temporary = Path(tempfile.mkdtemp(prefix=".link.", dir=scratch))
    try:
        os.link(source, temporary / path.name)
        (temporary / path.name).replace(path)
    except OSError:  # a file system without hard links, or a file with too many
        return False
    finally:
        shutil.rmtree(temporary)
    return True
