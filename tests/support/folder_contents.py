"""What is in a folder."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of its files by their paths inside it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
