"""Read what an ONNX graph says of itself: its outputs, and the files in which its weights are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mirror_rt.errors import BundleError
from mirror_rt.io.protobuf import DamagedError, Messages, Value, as_bytes, as_text, map_file


@dataclass(frozen=True, slots=True)
class GraphHeader:
    """The outputs of a graph, and the files of its weights.

    Attributes:
        outputs: name -> sizes of the output; None for a size that is not fixed.
        external: paths of the files that hold weights, beside that of the graph.
    """

    outputs: dict[str, tuple[int | None, ...]]
    external: tuple[str, ...]


def read_header(path: Path) -> GraphHeader:
    """Read the header of an ONNX file.

    Raises:
        BundleError: the file is not a whole ONNX graph, or has weights outside its folder.
    """
    messages, outputs, external = Messages(), {}, set[str]()
    try:
        for graph in messages.fields(map_file(path))[7]:
            parts = messages.fields(as_bytes(graph))
            for output in parts[12]:
                value = messages.fields(as_bytes(output))
                outputs[as_text(value[1])] = _sizes(messages, value[2])
            for weight in parts[5]:
                external |= set(_locations(messages, as_bytes(weight)))
    except (DamagedError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} is not a whole ONNX file: {error}") from None
    for name in sorted(external):
        if name != Path(name).name:
            raise BundleError(f"{path}: its weights are in {name!r}, outside its folder")
    return GraphHeader(outputs, tuple(sorted(external)))


def _sizes(messages: Messages, kinds: list[Value]) -> tuple[int | None, ...]:
    """Return the sizes of a tensor by its type, which onnx.proto calls TypeProto."""
    found: list[int | None] = []
    for kind in kinds:
        for tensor in messages.fields(as_bytes(kind))[1]:
            for shape in messages.fields(as_bytes(tensor))[2]:
                for dimension in messages.fields(as_bytes(shape))[1]:
                    size = messages.fields(as_bytes(dimension))[1]
                    found.append(size[-1] if size and isinstance(size[-1], int) else None)
    return tuple(found)


def _locations(messages: Messages, weight: memoryview) -> Iterator[str]:
    for entry in messages.fields(weight)[13]:
        pair = messages.fields(as_bytes(entry))
        if as_text(pair[1]) == "location":
            yield as_text(pair[2])
