"""Pack the wheel of onnxruntime-gpu for one kind of NVIDIA card: a sixth of its size.

    python benchmarks/gpu/pack.py WHEEL ARCHITECTURE OUT.tar.xz

The archive holds the unpacked wheel without its TensorRT provider. Of the CUDA provider it keeps
the device code of ARCHITECTURE (90: sm_90 and sm_90a) alone. Every fatbinary container of that
library keeps its place: the images for other cards go, its size is written anew, and zeros follow.
Containers for ARCHITECTURE alone hold CUTLASS' mixed-input and mixture-of-experts products, which
no encoder calls; they get a copy of the smallest image.
"""

from __future__ import annotations

import io
import lzma
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEFT_OUT, CUDA = "libonnxruntime_providers_tensorrt.so", "libonnxruntime_providers_cuda.so"
_MAGIC = 0xBA55ED50  # of a fatbinary container
_MACHINE_CODE = 2  # the kind of an image; others are PTX
# The dictionary is as large as the library, whose images are alike.
_FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 384 << 20},
]


class Image(NamedTuple):
    kind: int
    architecture: int
    data: bytes


class Container(NamedTuple):
    """A fatbinary container: its place, that of its first image, its end, and its images."""

    start: int
    first: int
    end: int
    images: list[Image]


def containers(library: bytes) -> Iterator[Container]:
    """Yield the fatbinary containers of an ELF file."""
    for start, length in _sections(library, "nv_fatbin"):
        at, end = start, start + length
        while at + 16 <= end:
            magic, _, head, size = struct.unpack_from("<IHHQ", library, at)
            if magic != _MAGIC:
                at += 8
                continue
            images = list(_images(library, at + head, at + head + size))
            yield Container(at, at + head, at + head + size, images)
            at += -(-(head + size) // 8) * 8


def _images(library: bytes, at: int, end: int) -> Iterator[Image]:
    while at + 64 <= end:
        kind, _, head, payload = struct.unpack_from("<HHIQ", library, at)
        (architecture,) = struct.unpack_from("<I", library, at + 28)
        yield Image(kind, architecture, library[at : at + head + payload])
        at += head + payload


def _sections(library: bytes, part: str) -> list[tuple[int, int]]:
    """Return the place and the length of the sections with `part` in their names."""
    (start,) = struct.unpack_from("<Q", library, 0x28)
    _, count, names = struct.unpack_from("<HHH", library, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", library, start + i * 64) for i in range(count)]
    strings = heads[names][4]
    found = []
    for name, _, _, _, offset, length in heads:
        text = library[strings + name : library.index(b"\0", strings + name)].decode()
        if part in text:
            found.append((offset, length))
    return found


def pruned(library: bytes, architecture: int) -> bytes:
    """Return an ELF file of the same size with the device code of one architecture alone.

    Raises:
        SystemExit: it has no machine code for the architecture.
    """
    found, data = list(containers(library)), bytearray(library)
    kept = [
        [image.data for image in container.images
         if (image.kind, image.architecture) == (_MACHINE_CODE, architecture)]
        for container in found
    ]  # fmt: skip
    if not any(kept):
        sys.exit(f"the library has no machine code for sm_{architecture}")
    least = min((image for images in kept for image in images), key=len)
    for container, images in zip(found, kept, strict=True):
        alone = {image.architecture for image in container.images} == {architecture}
        whole = least if alone else b"".join(images)
        data[container.first : container.end] = whole.ljust(container.end - container.first, b"\0")
        struct.pack_into("<Q", data, container.start + 8, len(whole))
    return bytes(data)


def pack(wheel: Path, architecture: int, out: Path) -> None:
    """Write the archive, whole or not at all."""
    making = out.with_name(f"{out.name}.making")
    with (
        zipfile.ZipFile(wheel) as source,
        lzma.open(making, "wb", filters=_FILTERS) as stream,
        tarfile.open(fileobj=stream, mode="w") as target,
    ):
        for name in sorted(source.namelist()):
            if name.endswith((LEFT_OUT, "/")):
                continue
            data = source.read(name)
            if name.endswith(CUDA):
                data = pruned(data, architecture)
            about = tarfile.TarInfo(name)
            about.size = len(data)
            target.addfile(about, io.BytesIO(data))
    making.replace(out)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    pack(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
