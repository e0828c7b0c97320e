"""Find the file of a graph to load, and check that the graph is that of an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mirror_rt.bundle.manifest import BUNDLES, Layout, Manifest
from mirror_rt.bundle.plain_manifest import LOGITS, TEXT_OUTPUT, TOKEN_OUTPUTS
from mirror_rt.errors import BundleError
from mirror_rt.tokens.joining import POSITIONS, JoinedTokens
from mirror_rt.tokens.padding import PaddedBatch

# The graph of a bundle gives all of its outputs. Plain ONNX files give one of theirs at least.
BUNDLE_OUTPUTS = ("sentence_embedding", "pooled_embedding")
_INTEGERS = {"tensor(int64)", "tensor(int32)", "i64", "i32"}
_PLAIN_OUTPUTS = (*TOKEN_OUTPUTS, TEXT_OUTPUT)


class GraphPorts(Protocol):
    """A graph's file, the types of its inputs, its outputs, and the lengths of their vectors."""

    graph: Path
    inputs: dict[str, str]
    outputs: list[str]
    widths: dict[str, int | None]


def loadable(folder: Path, manifest: Manifest, graph: str) -> Path:
    """Return the path of the graph to load: if possible the one that maps its weights.

    The mapped graph is not used in three cases: if the file with the weights was changed, since
    they may be elsewhere in it; if the manifest does not list the mapped graph, since no hash was
    compared; and if the file is a symbolic link, as in the cache of a model hub, since onnxruntime
    refuses links to weights.
    """
    path, mapped = folder / graph, folder / Layout.mapped(graph)
    if path.exists() and not path.is_file():  # reading a pipe would wait forever
        raise BundleError(f"{path} is not a regular file")
    record = manifest.files.get(graph)
    recorded = Layout.mapped(graph) in manifest.files
    if not (recorded and mapped.is_file() and path.is_file()) or path.is_symlink():
        return path
    same = record is None or record.bytes == path.stat().st_size
    return mapped if same else path


def outputs_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the outputs that are used of a graph."""
    if manifest.format in BUNDLES:
        return BUNDLE_OUTPUTS
    return _PLAIN_OUTPUTS if manifest.scores is None else (LOGITS,)


def check_graph(graph: GraphPorts, manifest: Manifest) -> None:
    """Raise BundleError if a graph lacks an input or output that its manifest's format promises."""
    plain = manifest.format not in BUNDLES
    takes = PaddedBatch._fields + ((POSITIONS,) if plain else JoinedTokens._fields)
    unusable = {*graph.inputs} - {*takes} or {*graph.inputs.values()} - _INTEGERS
    if unusable or "input_ids" not in graph.inputs:
        taken = ", ".join(f"{name} {kind}" for name, kind in graph.inputs.items())
        raise BundleError(f"{graph.graph} takes {taken}; expected integers {', '.join(takes)}")
    gives = outputs_of(manifest)
    given = [name for name in gives if name in graph.outputs]
    if not given or (len(given) < len(gives) and not plain):
        expected = f"{'one of' if plain else 'the pooled'} {', '.join(gives)}"
        raise BundleError(f"{graph.graph} gives {', '.join(graph.outputs)}; expected {expected}")
    if not plain and (width := graph.widths["pooled_embedding"]) not in (None, manifest.dimension):
        raise BundleError(
            f"{graph.graph} gives {width} dimensions, the dimension in its manifest is "
            f"{manifest.dimension}"
        )
