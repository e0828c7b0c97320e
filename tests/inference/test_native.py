"""`providers="native"`: the vectors of onnxruntime, without it and without padding."""

import numpy as np
import pytest

from mirror_rt import Encoder
from mirror_rt.bundle.families import FAMILIES
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.tokens.padding import RaggedTokens
from rounding import RUN_ERROR, assert_within_gate
from tiers import tiers

NATIVE = [name for name, row in FAMILIES.items() if row.tensors is not None]


@pytest.fixture(scope="module")
def texts(words):
    generator = np.random.default_rng(3)
    return [" ".join(generator.choice(words, n)) for n in (1, 1, 2, 3, 5, 8, 13, 30, 60, 90) * 3]


@pytest.mark.parametrize("family", tiers(NATIVE, fast=("bert", "modernbert")))
def test_every_family_gives_what_onnxruntime_gives(tiny_bundle, family, texts):
    folder = tiny_bundle(family)
    expected = Encoder.load(folder, providers="cpu").encode(texts)
    for precision in ("fp32", "bf16", "int8"):
        encoder = Encoder.load(folder, providers="native", variant=precision)
        found = encoder.encode(texts)
        assert_within_gate(found, expected, precision)
        if precision == "fp32":
            np.testing.assert_allclose(found, expected, atol=RUN_ERROR)
        alone = np.stack([encoder.encode(text) for text in texts])
        assert np.array_equal(found, alone)
        assert np.array_equal(encoder.encode(texts, batch_size=3), alone)


@pytest.mark.full
def test_lists_of_ids_of_every_length(tiny_bundle):
    folder, generator = tiny_bundle("roberta"), np.random.default_rng(5)
    rows = [generator.integers(0, 900, n).tolist() for n in range(1, 129)]  # paddings among them
    exact, native = (Encoder.load(folder, providers=name) for name in ("cpu", "native"))
    batch = RaggedTokens.from_lists(rows).pad(np.arange(len(rows)), pad_id=1)
    for normalize in (True, False):
        expected, found = (
            encoder.pipeline.model.run_batch(batch, normalize=normalize)
            for encoder in (exact, native)
        )
        np.testing.assert_allclose(found, expected, atol=RUN_ERROR * 32**0.5)


def test_token_vectors(bundle, texts):
    expected = Encoder.load(bundle, providers="cpu").encode_tokens(texts)
    found = Encoder.load(bundle, providers="native").encode_tokens(texts)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=RUN_ERROR * 32**0.5)


@pytest.mark.full
def test_other_families_need_onnxruntime(tiny_bundle):
    with pytest.raises(BundleError, match="onnxruntime can: pip install"):
        Encoder.load(tiny_bundle("rembert"), providers="native")


def test_options_that_do_not_fit_are_refused(bundle):
    with pytest.raises(ConfigError, match=r"variant 'fp16'.*fp32, bf16, int8"):
        Encoder.load(bundle, providers="native", variant="fp16")
    with pytest.raises(ConfigError, match=r"devices=.* is for NVIDIA cards"):
        Encoder.load(bundle, providers="native", devices=[0])


def test_an_exported_variant_is_compared_with_pytorch(tiny_bert, tmp_path):
    from mirror_export import ExportConfig, export_bundle

    precisions, targets = ("fp32", "bf16", "int8"), ("cpu", "native")
    config = ExportConfig(str(tiny_bert), tmp_path / "out", "mean", precisions, targets)
    manifest = export_bundle(config)
    assert list(manifest.variants) == ["fp32", "int8", "bf16-native", "int8-native"]
    for precision in ("bf16", "int8"):
        variant = manifest.variants[f"{precision}-native"]
        assert variant.parity["provider"] == "native"
        assert variant.parity["mean_cosine"] > 0.995
        assert Encoder.load(config.out, providers="native", variant=precision).variant == variant
        assert Encoder.load(config.out, variant=f"{precision}-native").variant == variant
    with pytest.raises(ConfigError, match="needs providers='native'"):
        Encoder.load(config.out, providers="cpu", variant="bf16-native")


def test_damaged_graphs_are_refused(bundle_copy):
    path = bundle_copy / Manifest.read(bundle_copy).variant("fp32").file
    whole = path.read_bytes()
    generator = np.random.default_rng(7)
    for _ in range(60):
        damaged = bytearray(whole[: generator.integers(1, len(whole))])
        for place in generator.integers(0, min(len(damaged), 20_000), 3):
            damaged[place] = generator.integers(0, 256)
        path.write_bytes(damaged)
        try:
            Encoder.load(bundle_copy, providers="native", verify=False).encode("a river")
        except BundleError:
            continue
