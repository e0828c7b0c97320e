"""Padding-free graphs through the sessions that run them, on a CPU that stands in for a card."""

import dataclasses
import itertools
import shutil

import numpy as np
import pytest

from mirror_export import ExportConfig, export_bundle
from mirror_rt import Encoder, Manifest, Reranker
from mirror_rt.bundle.description import describe_folder
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.providers import CPU, CUDA
from mirror_rt.tokens.joining import join_tokens
from packed_on_cpu import write_packed_for_cpu
from rounding import RUN_ERROR

TEXTS = ["the river", "a", "the old town hall by the river " * 3, "word", "river " * 100] * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory, all_variants):
    out = tmp_path_factory.mktemp("packed") / "bundle"
    shutil.copytree(all_variants("bert"), out)
    write_packed_for_cpu(out / "onnx/model_packed.onnx", out / "onnx/for_cpu.onnx")
    return out


@pytest.fixture
def manifest(folder, monkeypatch):
    """The bundle's manifest, whose padding-free graph this CPU runs as if it were a card."""
    monkeypatch.setattr("mirror_rt.inference.devices._ON_CARDS", {CPU, CUDA})
    read = Manifest.read(folder)
    packed = dataclasses.replace(
        read.variant("fp32-cuda"), target="cpu", file="onnx/for_cpu.onnx", weights=None
    )
    return dataclasses.replace(read, variants=read.variants | {"fp32-cuda": packed})


def load(folder, manifest, **options):
    return Encoder(
        describe_folder(folder, manifest=manifest),
        LoadOptions(variant="fp32-cuda", providers="cpu", verify=False, **options),
    )


def test_where_joined_tokens_are():
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    indices, positions, offset, starts = join_tokens(mask)
    assert positions.tolist() == [[0, 1, 0], [2, 0, 0], [3, 4, 5]]
    assert indices.tolist() == [0, 1, 3, 6, 7, 8]
    assert offset.tolist() == [[0, 1, 3], [6, 7, 8], [2, 4, 5]]
    assert starts.tolist() == [0, 2, 3, 6]
    assert join_tokens(mask, keep_padding=True).token_indices.tolist() == offset.ravel().tolist()


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_bound_runs_give_what_the_padded_graph_gives(folder, manifest, batch_size):
    expected = Encoder.load(folder, variant="fp32").encode(TEXTS)
    with load(folder, manifest) as encoder:
        assert encoder.devices == ["cuda:0"]
        assert "token_indices" in encoder.pipeline.model.runner.inputs
        found = encoder.encode(TEXTS, batch_size=batch_size)
    np.testing.assert_allclose(found, expected, atol=RUN_ERROR)


def test_a_padding_free_graph_is_captured(folder, manifest):
    expected = Encoder.load(folder, variant="fp32").encode(TEXTS)
    with load(folder, manifest, cuda_graphs=True) as encoder:
        captured = encoder.pipeline.model.runner._captured
        assert captured._session.graph.name == "for_cpu.onnx"
        shapes = {
            tuple(value.shape()) for capture in captured._captures.values()
            for name, value in capture.inputs.items() if name == "token_indices"
        }  # fmt: skip
        assert len(shapes) == len({rows * length for rows, length in captured._shapes})
        for rows in (1, 2, 3, 8):
            np.testing.assert_allclose(
                encoder.encode(TEXTS[:rows]), expected[:rows], atol=RUN_ERROR
            )


@pytest.mark.full
def test_pairs_keep_their_types(tiny_cross_encoder, tmp_path, monkeypatch):
    options = {"precisions": ("fp32",), "targets": ("cpu", "cuda")}
    export_bundle(ExportConfig(str(tiny_cross_encoder("bert")), tmp_path / "bundle", **options))
    graph = tmp_path / "bundle" / "onnx" / "model_packed.onnx"
    write_packed_for_cpu(graph, graph.with_name("for_cpu.onnx"))
    pairs = [*itertools.pairwise(TEXTS)][:12]
    expected = Reranker.load(tmp_path / "bundle", variant="fp32").predict(pairs)
    monkeypatch.setattr("mirror_rt.inference.devices._ON_CARDS", {CPU, CUDA})
    read = Manifest.read(tmp_path / "bundle", "mirror_rt cross-encoder")
    packed = dataclasses.replace(
        read.variant("fp32-cuda"), target="cpu", file="onnx/for_cpu.onnx", weights=None
    )
    manifest = dataclasses.replace(read, variants={"fp32-cuda": packed})
    load = LoadOptions(variant="fp32-cuda", providers="cpu", verify=False)
    found = Reranker(describe_folder(tmp_path / "bundle", manifest=manifest), load).predict(pairs)
    np.testing.assert_allclose(found, expected, atol=RUN_ERROR)
