"""Cut files into boxes that can be transferred one at a time, and join them where they arrive.

    python benchmarks/gpu/parts.py cut SOURCE PARTS [--megabytes 56]
    python benchmarks/gpu/parts.py join PARTS TARGET

`cut` puts the files of SOURCE into numbered folders of PARTS, the boxes, none larger than so many
megabytes; a file that does not fit into a box is split over several. Files needed first come first.
`join` assembles the files that have arrived, and lists those of which a piece is still missing. A
file whose hash has changed is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

MANIFEST = "files.json"
ORDER = ("tools", "product", "gpu", "models", "rival")  # folders of SOURCE
_CHUNK = 1 << 20


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cut(source: Path, parts: Path, megabytes: float) -> int:
    """Fill `parts` with boxes of at most `megabytes`; return their number."""
    limit, box, room = int(megabytes * 1e6), 1, int(megabytes * 1e6)
    manifest = []
    paths = [path for group in ORDER for path in sorted((source / group).rglob("*"))]
    for path in filter(Path.is_file, paths):
        name, size, pieces, start = path.relative_to(source), path.stat().st_size, [], 0
        while start < size or not pieces:
            if room < min(size - start, limit // 20):  # avoid tiny pieces
                box, room = box + 1, limit
            length = min(room, size - start)
            piece = Path(str(box), f"{name}.{len(pieces):02}")
            _copy(path, start, length, parts / piece)
            pieces.append({"path": piece.as_posix(), "bytes": length})
            start, room = start + length, room - length
        manifest.append({"name": name.as_posix(), "sha256": sha256(path), "pieces": pieces})
    (parts / "1" / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return box


def join(parts: Path, target: Path) -> Iterator[str]:
    """Assemble the complete files in `target`; yield the names of the incomplete ones.

    Raises:
        ValueError: an assembled file has another hash than before it was cut.
    """
    manifest = parts / "1" / MANIFEST
    if not manifest.is_file():
        yield f"{manifest} (benchmarks/gpu/parts.sh makes it, --parts names another folder)"
        return
    for entry in json.loads(manifest.read_text()):
        whole = target / entry["name"]
        if whole.is_file():
            continue
        pieces = [parts / piece["path"] for piece in entry["pieces"]]
        sizes = [piece["bytes"] for piece in entry["pieces"]]
        if [path.stat().st_size if path.is_file() else -1 for path in pieces] != sizes:
            yield entry["name"]
            continue
        making = whole.with_name(f"{whole.name}.making")
        making.parent.mkdir(parents=True, exist_ok=True)
        with making.open("wb") as stream:
            for path in pieces:
                stream.write(path.read_bytes())
        if sha256(making) != entry["sha256"]:
            making.unlink()
            raise ValueError(f"{entry['name']}: its SHA-256 is another one: send its pieces again")
        making.rename(whole)


def _copy(path: Path, start: int, length: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as source, target.open("wb") as stream:
        source.seek(start)
        while length:
            chunk = source.read(min(length, _CHUNK))
            stream.write(chunk)
            length -= len(chunk)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="do", required=True)
    for name in ("cut", "join"):
        command = commands.add_parser(name)
        command.add_argument("source", type=Path)
        command.add_argument("target", type=Path)
        if name == "cut":
            command.add_argument("--megabytes", type=float, default=56)
    arguments = parser.parse_args()
    if arguments.do == "cut":
        boxes = cut(arguments.source, arguments.target, arguments.megabytes)
        print(f"{boxes} boxes in {arguments.target}")
        return 0
    for name in join(arguments.source, arguments.target):
        print(f"not whole yet: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
