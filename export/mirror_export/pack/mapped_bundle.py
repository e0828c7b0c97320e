"""Copy a bundle with a linear map behind its pooling, in every graph of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import nn

from mirror_export.graph.fusion import describe_graph
from mirror_export.graph.graph_edit import constant, insert_behind, read_graph
from mirror_export.graph.onnx_file import Placed, remove_sources, write_sharing
from mirror_export.graph.torch_export import OUTPUT_NAMES
from mirror_export.graph.weight_table import table_again
from mirror_rt import Encoder, Manifest
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.manifest import Layout, Variant, with_records
from mirror_rt.errors import BundleError, ConfigError, ModelError, ParityError
from mirror_rt.heads.task_heads import Heads
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.providers import Providers
from mirror_rt.io.atomic import link_or_copy, write_json
from mirror_train.model.dense import Dense, save_dense

Matrix = npt.NDArray[np.float64]

_MODULES = "modules.json"
_POOLED = OUTPUT_NAMES[1]
_TOLERANCE = 1e-4  # as of a float32 export


def copy_mapped(
    source: Path, target: Path, matrix: Matrix, texts: list[str], **changes: Any
) -> None:
    """Write the bundle `source` into the empty folder `target`, its vectors multiplied by a matrix.

    The matrix is orthogonal, [D, D]. Files that do not change become hard links; `changes` are
    fields of the manifest. The vectors of both bundles are compared on `texts`.
    """
    manifest = Manifest.read(source)
    if Heads.present(source):
        raise ConfigError(
            f"{source} has task heads, which take its vectors as they are: export the model "
            "without them to align it"
        )
    graphs = tuple(v.file.removesuffix(".onnx") for v in manifest.variants.values())
    for name in manifest.files:
        if not name.startswith(graphs) and name != _MODULES:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source / name, target / name)
    if (source / Layout.card).is_file():
        link_or_copy(source / Layout.card, target / Layout.card)
    weight = matrix.astype(np.float32)
    _write_layer(source, target, weight)
    variants, placed = _write_graphs(source, target, manifest, weight)
    table = table_again(describe_folder(source, manifest=manifest), placed)
    manifest = dataclasses.replace(manifest, variants=variants, native=table, **changes)
    write_json(target / Layout.manifest, with_records(manifest, target).to_dict())
    _compare(source, target, weight, texts)


def _write_layer(source: Path, target: Path, weight: npt.NDArray[np.float32]) -> None:
    """Declare the map as a Dense module, for tools that pool by themselves."""
    if not (source / _MODULES).is_file():
        return  # of the pooling mean-with-padding, which only the manifest declares
    try:
        modules = json.loads((source / _MODULES).read_text(encoding="utf-8"))
        last = modules[-1]["type"].endswith(".Normalize")
        kept, rest = (modules[:-1], modules[-1:]) if last else (modules, [])
        library = modules[0]["type"].rpartition(".")[0]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BundleError(f"{source / _MODULES} is not a list of modules: {error}") from error
    layer = Dense(*weight.shape, bias=False, activation=nn.Identity())
    layer.linear.weight.data = torch.from_numpy(weight.T.copy())
    place = f"{len(kept)}_Dense"
    save_dense(layer, target / place)
    modules = [*kept, {"path": place, "type": f"{library}.Dense"}, *rest]
    for number, module in enumerate(modules):
        module |= {"idx": number, "name": str(number)}
    write_json(target / _MODULES, modules)


def _write_graphs(
    source: Path, target: Path, manifest: Manifest, weight: npt.NDArray[np.float32]
) -> tuple[dict[str, Variant], list[Placed]]:
    """Write every graph once, those first whose weights others read.

    Return the variants, and where the weights of the float32 graph are.
    """
    described, placed = dict[str, dict[str, Any]](), list[Placed]()
    for variant in sorted(manifest.variants.values(), key=lambda one: one.weights is not None):
        if variant.file in described:
            continue
        model, path = read_graph(source / variant.file), target / variant.file
        path.parent.mkdir(parents=True, exist_ok=True)
        _map_output(model, weight)
        written = write_sharing(model, path, target / variant.weights if variant.weights else None)
        if manifest.native is not None and manifest.native.file.startswith(variant.file):
            placed += written
        described[variant.file] = describe_graph(model)
    for folder in {(target / file).parent for file in described}:
        remove_sources(folder)
    return {
        name: dataclasses.replace(variant, graph=variant.graph | described[variant.file])
        for name, variant in manifest.variants.items()
    }, placed


def _map_output(model: ir.Model, matrix: npt.NDArray[np.float32]) -> None:
    """Multiply the pooled vector [B, D] by `matrix`, float32 [D, D], before it is normalised."""
    graph = model.graph
    pooled = next((value for value in graph.outputs if value.name == _POOLED), None)
    if pooled is None or pooled.producer() is None:
        raise ModelError(f"the graph has no output {_POOLED}: export the model again")
    number = sum(name.startswith("alignment") for name in graph.initializers)
    weight = constant(graph, f"alignment.{number}.weight", matrix)
    node = ir.Node("", "MatMul", [pooled, weight])
    insert_behind(graph, pooled, node, f"unaligned.{number}")


def _compare(source: Path, target: Path, weight: npt.NDArray[np.float32], texts: list[str]) -> None:
    """Check every graph that a CPU runs: its vectors are those of before times the matrix."""
    for name, variant in Manifest.read(target).variants.items():
        fused = variant.graph.get("fused", {})
        if any(name.startswith("Packed") for name in fused):
            continue  # only CUDA has it
        native = variant.target == "native"
        runs = variant if native else dataclasses.replace(variant, target="cpu")
        providers: Providers = "native" if native else "cpu"
        options = LoadOptions(verify=False, providers=providers, variant=name)
        vectors = []
        for folder in (source, target):
            manifest = dataclasses.replace(Manifest.read(folder), variants={name: runs})
            described = describe_folder(folder, manifest=manifest)
            with Encoder(described, options) as encoder:
                vectors.append(encoder.encode(texts, normalize_embeddings=True))
        difference = float(np.abs(vectors[0] @ weight - vectors[1]).max())
        if not difference <= _TOLERANCE:
            raise ParityError(
                f"{target.name}, variant {name}: the aligned vectors differ from the mapped ones "
                f"by {difference:.1e}, more than {_TOLERANCE:.0e}"
            )
