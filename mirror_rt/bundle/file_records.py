"""Record the sizes and hashes of a bundle's files, and compare the files with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirror_rt.errors import BundleIntegrityError
from mirror_rt.io.file_states import content_sha256
from mirror_rt.schema import Digest, between

_LARGE = 2**20  # bytes of a file that is worth a thread; graphs with mapped weights are smaller


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The size in bytes and the SHA-256 of one file."""

    bytes: Annotated[int, between(0, 2**63 - 1)]
    sha256: Digest


def damage_of(folder: Path, files: Mapping[str, FileRecord], *, hashed: bool = True) -> str | None:
    """Describe the first file that is missing or was changed; return None if there is none.

    Files that are not `hashed` are compared by their sizes alone.
    """
    for name, record in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != record.bytes:
            return f"{name} has {size} bytes, its manifest says {record.bytes}"
        if hashed and (found := content_sha256(path)) != record.sha256:
            return f"{name} has SHA-256 {found[:16]}..., its manifest says {record.sha256[:16]}..."
    return None


def verify(folder: Path, files: Mapping[str, FileRecord], *, hashed: bool = True) -> None:
    """Compare files with their sizes and hashes; BundleIntegrityError names the first other one."""
    if damage := damage_of(folder, files, hashed=hashed):
        raise BundleIntegrityError(f"{folder} is damaged: {damage}: make it again")


@contextlib.contextmanager
def verifying(folder: Path, files: Mapping[str, FileRecord]) -> Iterator[None]:
    """Compare files as `verify` does, the hashes of large ones while the body reads them.

    Raises:
        BundleIntegrityError: a file is missing or differs; it takes the place of an error that the
            body raises then.
    """
    large = {name: record for name, record in files.items() if record.bytes >= _LARGE}
    verify(folder, {name: record for name, record in files.items() if name not in large})
    verify(folder, large, hashed=False)
    if not large:
        yield
        return
    # Imported here, because `import mirror_rt` alone does not need it.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as executor:
        compared = executor.submit(verify, folder, large)
        try:
            yield
        finally:
            compared.result()
