"""Check files of pickled tensors before torch reads them."""

from __future__ import annotations

import zipfile
from pathlib import Path


def refuse_compressed(path: Path) -> None:
    """Check that a file of torch.save is not compressed, as torch writes none.

    Raises:
        ValueError: it is compressed, so that a small file could take all memory, or is damaged.
    """
    if not zipfile.is_zipfile(path):
        return  # the older format, which has no compression
    try:
        with zipfile.ZipFile(path) as archive:
            held = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if held > path.stat().st_size:
        raise ValueError(f"it is compressed: {held:,} bytes in a file of {path.stat().st_size:,}")
