"""`providers="openvino"`: the vectors of onnxruntime, from the same graphs."""

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from damage import spoil_token
from mirror_rt import Encoder, NonFiniteError, Scheduler
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.cpus import cpu_budget
from mirror_rt.diagnostics.doctor import examine
from mirror_rt.errors import (
    BundleError,
    ConfigError,
    MissingDependencyError,
    ProviderError,
)
from mirror_rt.inference.engines import openvino_offer
from mirror_rt.inference.openvino import compiling
from mirror_rt.inference.openvino.runner import OpenVinoRunner
from mirror_rt.inference.shared_libraries import nvidia_cards
from rounding import BF16_ANY_BATCH, NORM_ERROR, RUN_ERROR
from tiers import tiers

pytest.importorskip("openvino", reason="the extra openvino is not installed")

FAMILIES = [
    "bert", "xlm-roberta", "distilbert", "albert", "mpnet", "deberta-v2", "modernbert", "rembert"
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The cache of compiled graphs is made anew for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("MIRROR_RT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def texts(words):
    generator = np.random.default_rng(3)
    return [" ".join(generator.choice(words, n)) for n in (1, 1, 2, 3, 5, 8, 13, 30, 60, 90) * 3]


@pytest.fixture(scope="module")
def has_bf16():
    return compiling.choose_precision(None, compiling.import_openvino()) == "bf16"


def load(bundle, **options):
    return Encoder.load(bundle, **{"providers": "openvino", "variant": "fp32"} | options)


@pytest.mark.parametrize("family", tiers(FAMILIES, fast=("bert", "modernbert")))
def test_every_family_gives_what_onnxruntime_gives(tiny_bundle, family, texts, has_bf16):
    folder = tiny_bundle(family)
    expected = Encoder.load(folder, providers="cpu").encode(texts)
    encoder = load(folder)
    found = encoder.encode(texts)
    np.testing.assert_allclose(found, expected, atol=RUN_ERROR)
    alone = np.stack([encoder.encode(text) for text in texts])
    np.testing.assert_allclose(found, alone, atol=RUN_ERROR)
    if has_bf16:
        cosines = (load(folder, variant="bf16").encode(texts) * expected).sum(1)
        assert cosines.mean() >= 0.9999
        assert cosines.min() >= 0.999


def test_the_fastest_precision_is_the_default(bundle, has_bf16, caplog):
    with caplog.at_level(logging.INFO, "mirror_rt"):
        encoder = load(bundle, variant=None)
    assert encoder.variant.precision == ("bf16" if has_bf16 else "fp32")
    assert encoder.variant.parity is None or not has_bf16
    assert encoder.providers == ["openvino"]
    assert f"under OpenVINO on the CPU in {encoder.variant.precision}" in caplog.text


def test_bf16_is_refused_where_the_processor_has_none(bundle, monkeypatch):
    class Core:
        available_devices = ("CPU",)

        def get_property(self, device, name):
            return ["FP32"]

    monkeypatch.setattr(sys.modules["openvino"], "Core", Core)
    assert compiling.choose_precision(None, compiling.import_openvino()) == "fp32"
    with pytest.raises(ProviderError, match="neither AVX512-BF16 nor AMX"):
        load(bundle, variant="bf16")


def test_vectors_without_unit_length_and_of_tokens(bundle, texts):
    exact = Encoder.load(bundle, providers="cpu")
    encoder = load(bundle)
    np.testing.assert_allclose(
        encoder.encode(texts, normalize_embeddings=False),
        exact.encode(texts, normalize_embeddings=False),
        atol=RUN_ERROR * 32**0.5,
    )
    pairs = zip(encoder.encode_tokens(texts), exact.encode_tokens(texts), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, atol=RUN_ERROR * 32**0.5)


@pytest.mark.full
def test_threads_share_an_encoder(bundle, texts):
    encoder = load(bundle, threads=2)
    expected = encoder.encode(texts)

    def work(seed):
        for i in np.random.default_rng(seed).permutation(len(texts)).tolist():
            np.testing.assert_allclose(encoder.encode(texts[i]), expected[i], atol=RUN_ERROR)

    with ThreadPoolExecutor(4) as callers:
        assert len(list(callers.map(work, range(4)))) == 4
    with Scheduler(encoder) as scheduler:
        futures = [scheduler.submit(text) for text in texts]
        found = np.concatenate([future.result(60).embeddings for future in futures])
    np.testing.assert_allclose(found, expected, atol=RUN_ERROR)


def test_threads_follow_the_budget_and_are_not_pinned(bundle):
    for threads in (None, 1):
        compiled, _ = load(bundle, threads=threads).pipeline.model.runner._open()
        found = compiled.get_property("INFERENCE_NUM_THREADS")
        assert found == (threads or cpu_budget().threads)
        assert compiled.get_property("ENABLE_CPU_PINNING") is False


def test_a_large_run_gives_its_memory_back(bundle):
    runner = load(bundle).pipeline.model.runner
    compiled, idle = runner._open()
    released = []

    class Spy:
        def create_infer_request(self):
            return compiled.create_infer_request()

        def release_memory(self):
            released.append(True)
            compiled.release_memory()

    runner._model = (Spy(), idle)
    encoder = load(bundle)
    encoder.pipeline.model.runner = runner
    long = ["the " * i + "river " * 200 for i in range(40)]  # equal texts would run once
    encoder.encode(long)
    assert not released
    assert 1 <= len(idle) <= 2
    found = encoder.encode(long, batch_size=128)
    assert released
    np.testing.assert_allclose(found, encoder.encode(long), atol=RUN_ERROR)


def test_compiled_graphs_are_cached_and_not_mistaken(bundle_copy, cache, texts):
    encoder = load(bundle_copy)
    expected = encoder.encode(texts)
    kept = set((cache / "openvino").iterdir())
    again = load(bundle_copy)
    assert again.pipeline.model.runner._open()[0].get_property("LOADED_FROM_CACHE")
    assert set((cache / "openvino").iterdir()) == kept
    np.testing.assert_allclose(again.encode(texts), expected, atol=NORM_ERROR)
    graph = bundle_copy / Manifest.read(bundle_copy).variant("fp32").file
    token = encoder.tokenize([texts[0]])[0][1]
    spoil_token(graph, graph, token)
    with pytest.raises(NonFiniteError):  # the weights of now, not those that were compiled
        load(bundle_copy, verify=False).encode(texts[0])


def test_a_cache_that_cannot_be_used_is_done_without(bundle, tmp_path, monkeypatch, texts, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.INFO, "mirror_rt"):
        load(bundle).encode(texts)
    assert "without its cache" in caplog.text
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "new"))
    expected = load(bundle).encode(texts)
    for blob in (tmp_path / "new").rglob("*.blob"):
        blob.chmod(0o600)
        blob.write_bytes(blob.read_bytes()[: blob.stat().st_size // 2])
    np.testing.assert_allclose(load(bundle).encode(texts), expected, atol=NORM_ERROR)


def test_rows_that_are_not_finite_run_again_in_fp32(bundle, has_bf16, monkeypatch, texts, caplog):
    if not has_bf16:
        pytest.skip("this processor has no bfloat16")
    exact, encoder = load(bundle).encode(texts), load(bundle, variant="bf16")
    run = OpenVinoRunner.run

    def spoiled(self, batch, output):
        vectors = run(self, batch, output)
        if self is encoder.pipeline.model.runner:
            vectors[::2] = np.nan
        return vectors

    monkeypatch.setattr(OpenVinoRunner, "run", spoiled)
    np.testing.assert_allclose(encoder.encode(texts), exact, atol=BF16_ANY_BATCH)
    assert "such texts run again in fp32" in caplog.text


@pytest.mark.usefixtures("engine_is_fast")
@pytest.mark.skipif(nvidia_cards() > 0, reason="auto takes the card")
def test_openvino_is_never_chosen_unasked_but_mentioned(bundle, caplog):
    with caplog.at_level(logging.INFO, "mirror_rt"):
        assert Encoder.load(bundle).providers == ["native"]
    assert caplog.text.count("OpenVINO is installed: providers='openvino' would run") == 1
    said = {finding.name: finding for finding in examine()}["openvino"]
    assert said.status == "ok"
    assert "auto never chooses it" in said.detail
    if "ELSEWHERE_ISA" not in os.environ:  # OpenVINO sees what the processor has, the engine less
        assert ("bf16" in said.detail) == ("in bf16" in (openvino_offer() or ""))


def test_missing(bundle, monkeypatch, texts, caplog):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'mirror-rt\[openvino\]'"):
        load(bundle)
    expected = Encoder.load(bundle, providers="cpu").encode(texts)
    encoder = load(bundle, allow_fallback=True)
    assert encoder.providers == ["CPUExecutionProvider"]
    assert "running under onnxruntime" in caplog.text
    np.testing.assert_array_equal(encoder.encode(texts), expected)


def test_broken(bundle, tmp_path, monkeypatch):
    (tmp_path / "openvino.py").write_text("raise ImportError('libopenvino.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "openvino")
    with pytest.raises(ProviderError, match=r"does not load: libopenvino\.so: no such file"):
        load(bundle)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "int8"}, r"variant 'int8'.*fp32, bf16"),
        ({"devices": [0]}, r"devices=\[0\] is for NVIDIA cards"),
        ({"cuda_graphs": True}, "cuda_graphs=True is for NVIDIA cards"),
        ({"spinning": "off"}, "OpenVINO decides how its threads wait"),
        ({"provider_options": {"no_such": 1}}, r"provider_options \['no_such'\].*NUM_STREAMS"),
    ],
)
def test_options_that_do_not_fit_are_refused(bundle, options, message):
    with pytest.raises(ConfigError, match=message):
        load(bundle, **options)


def test_properties_are_passed_on(bundle, texts):
    encoder = load(bundle, provider_options={"NUM_STREAMS": 2}, threads=2)
    compiled, _ = encoder.pipeline.model.runner._open()
    assert compiled.get_property("NUM_STREAMS") == 2
    np.testing.assert_allclose(encoder.encode(texts), load(bundle).encode(texts), atol=NORM_ERROR)


def test_a_graph_that_it_cannot_read(bundle_copy):
    graph = bundle_copy / Manifest.read(bundle_copy).variant("fp32").file
    graph.write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"cannot run .*onnxruntime"):
        load(bundle_copy, verify=False)


def test_a_bundle_without_an_fp32_graph(bundle_copy):
    path = bundle_copy / "mirror.json"
    path.write_text(path.read_text().replace('"precision": "fp32"', '"precision": "fp16"'))
    with pytest.raises(BundleError, match="export it with mirror-rt export --precision fp32"):
        load(bundle_copy)


def test_a_batch_on_which_it_fails(bundle):
    encoder = load(bundle)
    ids = np.zeros((1, 100_000), np.int64)
    from mirror_rt.tokens.padding import PaddedBatch

    batch = PaddedBatch(ids, np.ones_like(ids), np.zeros_like(ids))
    with pytest.raises(BundleError, match="failed on 1 texts of 100000 tokens"):
        encoder.pipeline.model.runner.run(batch, "sentence_embedding")


def test_command_line(cli, bundle, tmp_path, texts):
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    chosen = ("--providers", "openvino", "--variant", "fp32")
    done = cli("encode", "--model", bundle, "--input", tmp_path / "texts.txt",
               "--output", tmp_path / "out.npy", *chosen)  # fmt: skip
    assert done.code == 0, done.err
    expected = Encoder.load(bundle, providers="cpu").encode(texts)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=RUN_ERROR)
    done = cli("benchmark", bundle, "--batches", "1", "--seconds", "0.2", "--lengths", "8",
               "--json", tmp_path / "report.json", "--providers", "openvino")  # fmt: skip
    assert done.code == 0, done.err
    assert '"openvino": "20' in (tmp_path / "report.json").read_text()
    done = cli("doctor", "--model", bundle, *chosen)
    assert "fp32 on openvino" in done.out
