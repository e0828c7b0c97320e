"""Bundles of late-interaction models: their vectors are those of the folder, or none is written."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from late_models import save_library, save_pylate
from mirror_export import ExportConfig, export_bundle
from mirror_rt import (
    BundleError,
    BundleIntegrityError,
    ConfigError,
    Encoder,
    Manifest,
    MultiVectorEncoder,
)

QUERIES = ["who runs?", "the old town", "a " * 40]
DOCUMENTS = ["The river runs slowly, through the old town.", "word", "road! " * 40]
FOLDERS = {
    "pylate": functools.partial(save_pylate, residual=True),
    "library": functools.partial(
        save_library, expansion={"strategy": "min", "attend": False, "length": 9}
    ),
}


@pytest.fixture(scope="module")
def exported(tiny_bert, tmp_path_factory):
    root = tmp_path_factory.mktemp("late-bundles")

    @functools.cache
    def export(name: str):
        folder, out = FOLDERS[name](tiny_bert, root / name), root / f"{name}-bundle"
        config = ExportConfig(
            str(folder), out, precisions=("fp32", "int8"), targets=("cpu", "native")
        )
        export_bundle(config)
        return folder, out

    return export


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("providers", ["native", "cpu"])
def test_a_bundle_gives_the_vectors_of_its_folder(exported, name, providers):
    folder, out = exported(name)
    with (
        MultiVectorEncoder.load(folder) as mine,
        MultiVectorEncoder.load(out, providers=providers) as bundled,
    ):
        assert bundled.dimension == mine.dimension
        for side, texts in (("query", QUERIES), ("document", DOCUMENTS)):
            expected, found = (getattr(one, f"encode_{side}")(texts) for one in (mine, bundled))
            for a, b in zip(expected, found, strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=5e-6)
                assert len(a) == len(b) > 0


def test_the_manifest_says_what_it_is(exported, cli):
    _, out = exported("pylate")
    manifest = Manifest.read(out, None)
    assert manifest.format == "mirror_rt multi-vector encoder"
    assert manifest.tokens is not None
    assert manifest.tokens.query.prefix == "[Q] "
    assert {*manifest.variants} == {"fp32", "int8", "int8-native"}
    assert all(variant.parity["passed"] for variant in manifest.variants.values())
    assert "token vectors" in cli("info", out).out
    assert "MultiVectorEncoder.load" in (out / "README.md").read_text(encoding="utf-8")
    with pytest.raises(BundleError, match=r"mirror_rt\.MultiVectorEncoder\.load takes it"):
        Encoder.load(out)


def test_damaged_bundles_are_refused(exported, tmp_path):
    import shutil

    _, out = exported("pylate")
    copy = shutil.copytree(out, tmp_path / "copy")
    path = copy / "heads" / "projection.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BundleIntegrityError, match="projection"):
        MultiVectorEncoder.load(copy)
    with pytest.raises(BundleError, match=r"projection\.npy cannot be read"):
        MultiVectorEncoder.load(copy, verify=False)
    values = json.loads((copy / "mirror.json").read_text(encoding="utf-8"))
    values["tokens"]["layers"][0]["inputs"] = 31
    (copy / "mirror.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(BundleError, match=r"tokens\.layers\[0\]\.inputs is 31, expected 32"):
        MultiVectorEncoder.load(copy)


@pytest.mark.parametrize(
    "options",
    [{"targets": ("cuda",)}, {"truncate_dim": 4}, {"max_length": 8}],
)
def test_options_of_encoders_are_refused(tiny_bert, tmp_path, options):
    folder = save_pylate(tiny_bert, tmp_path / "model")
    with pytest.raises(ConfigError, match="is for encoders, not late-interaction models"):
        export_bundle(ExportConfig(str(folder), tmp_path / "out", **options))
