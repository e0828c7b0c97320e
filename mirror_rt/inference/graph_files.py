"""Find the file of a graph to load, and check that the graph is that of an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import BundleError
from mirror_rt.tokens.joining import JoinedTokens
from mirror_rt.tokens.padding import PaddedBatch

if TYPE_CHECKING:
    from mirror_rt.inference.openvino.runner import OpenVinoRunner
    from mirror_rt.inference.session import GraphSession


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


def check_graph(session: GraphSession | OpenVinoRunner, dimension: int) -> None:
    """Raise BundleError if a graph is not that of an encoder with vectors of this length."""
    unknown = set(session.inputs) - {*PaddedBatch._fields, *JoinedTokens._fields}
    missing = {"sentence_embedding", "pooled_embedding"} - session.widths.keys()
    if unknown or missing:
        raise BundleError(
            f"{session.graph} is not a pooled encoder graph: "
            f"unknown inputs {sorted(unknown)}, missing outputs {sorted(missing)}"
        )
    if (width := session.widths["pooled_embedding"]) not in (None, dimension):
        raise BundleError(
            f"{session.graph} gives {width} dimensions, the dimension in its manifest is "
            f"{dimension}"
        )
