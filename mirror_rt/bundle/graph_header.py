"""Read the header of an ONNX graph: outputs, files of weights, and how it is quantised."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirror_rt.errors import BundleError
from mirror_rt.io.protobuf import DamagedError, Messages, Value, as_bytes, as_text, map_file

# Operators whose scale is set by the largest number of a whole batch, as a node of any depth names
# them: field 4 of NodeProto in onnx.proto.
_SCALED_BY_BATCH = tuple(
    bytes([4 << 3 | 2, len(name)]) + name
    for name in (b"DynamicQuantizeLinear", b"DynamicQuantizeMatMul", b"DynamicQuantizeLSTM")
)


@dataclass(frozen=True, slots=True)
class GraphHeader:
    """The outputs of a graph, the files of its weights, and whether texts change each other.

    Attributes:
        outputs: name -> sizes of the output; None for a size that is not fixed.
        external: paths of the files that hold weights, beside that of the graph.
        scaled_by_batch: whether it is quantised dynamically, with one scale for a whole batch, so
            that the vector of a text depends on the other texts and on the padding.
    """

    outputs: dict[str, tuple[int | None, ...]]
    external: tuple[str, ...]
    scaled_by_batch: bool


def read_header(path: Path) -> GraphHeader:
    """Read the header of an ONNX file; BundleError if it is damaged, or has weights elsewhere."""
    messages, outputs, external, scaled = Messages(), {}, set[str](), False
    try:
        model = messages.fields(map_file(path))
        nodes = [*model[25]]  # those of the functions
        for graph in model[7]:
            parts = messages.fields(as_bytes(graph))
            nodes += parts[1]
            for output in parts[12]:
                value = messages.fields(as_bytes(output))
                outputs[as_text(value[1])] = _sizes(messages, value[2])
            for weight in parts[5]:
                for entry in messages.fields(as_bytes(weight))[13]:
                    pair = messages.fields(as_bytes(entry))
                    external |= {as_text(pair[2])} if as_text(pair[1]) == "location" else set()
        scaled = any(name in bytes(as_bytes(node)) for node in nodes for name in _SCALED_BY_BATCH)
    except (DamagedError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} is not a whole ONNX file: {error}") from None
    for name in sorted(external):
        if name != Path(name).name:
            raise BundleError(f"{path}: its weights are in {name!r}, outside its folder")
    return GraphHeader(outputs, tuple(sorted(external)), scaled)


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
