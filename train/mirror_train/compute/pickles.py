"""Check files of pickled tensors before torch reads them."""

from __future__ import annotations

import zipfile
from pathlib import Path


def refuse_compressed(path: Path) -> None:
    """Raise ValueError for a compressed file of torch.save, which could take all memory."""
    if not zipfile.is_zipfile(path):
        return  # the older format, which has no compression
    try:
        with zipfile.ZipFile(path) as archive:
            held = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if held > path.stat().st_size:
        raise ValueError(f"it is compressed: {held:,} bytes in a file of {path.stat().st_size:,}")
