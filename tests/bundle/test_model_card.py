import dataclasses
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from huggingface_hub import ModelCard

from mirror_export import ExportConfig, export_bundle
from mirror_rt import Manifest
from mirror_rt.bundle.model_card import model_card
from mirror_train import TrainConfig, load_recipe, load_training_data, tune
from mirror_train.model.license import base_license
from mirror_train.systems import SYSTEMS
from rounding import RUN_ERROR
from tiers import tiers

CARD = "---\nlicense: cc-by-4.0\nlanguage: en\n---\n# Base\n"


@pytest.fixture(scope="module")
def tuned_bundle(tiny_bert, words_file, made_once):
    """A bundle that was tuned here, of a base model with a card."""

    def write(root):
        base = shutil.copytree(tiny_bert, root / "base")
        (base / "README.md").write_text(CARD)
        recipe = load_recipe("word").replace(batch_size=50, epochs=1)
        data = load_training_data(words_file, language="zh-Hans")
        tune(data, TrainConfig(recipe=recipe, out=root / "tuned", model=str(base), pooling="mean"))
        export_bundle(ExportConfig(str(root / "tuned"), root / "bundle"))

    return made_once("tuned-of-a-card", write) / "bundle"


def front_matter(text):
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])


def test_front_matter(tuned_bundle):
    card = ModelCard.load(tuned_bundle / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert card.data.language == "zh"
    assert card.data.pipeline_tag == "sentence-similarity"
    assert card.data.library_name == "mirror_rt"
    assert card.data.base_model is None  # a folder's name is no name on the hub
    assert "onnx" in card.data.tags
    assert card.data.to_dict() == front_matter((tuned_bundle / "README.md").read_text())


def test_a_base_model_of_the_hub_is_linked(bundle):
    manifest = Manifest.read(bundle)
    for base, linked in (
        ({"name": "owner/base", "revision": None}, "owner/base"),
        ({"name": "bert-base", "revision": "0123"}, "bert-base"),
        ({"name": "bert-base", "revision": None}, None),
        ({}, None),
    ):
        data = front_matter(model_card(dataclasses.replace(manifest, base_model=base)))
        assert data.get("base_model") == linked
        assert data["license"] == "unknown"
        assert "language" not in data


def test_what_the_card_says(tuned_bundle, words):
    text = (tuned_bundle / "README.md").read_text()
    manifest = Manifest.read(tuned_bundle)
    lines = text.splitlines()
    assert manifest.base_model["license"] == "cc-by-4.0"
    assert "| base model, license | cc-by-4.0 |" in lines
    assert f"| SHA-256 | {manifest.data['sha256']} |" in lines
    assert "| strings | 400 |" in lines
    for name, value in manifest.recipe.items():
        shown = f"{value:.6g}" if isinstance(value, float) else value
        assert value is None or f"| {name.replace('_', ' ')} | {shown} |" in lines
    assert f"| torch | {manifest.training['torch']} |" in lines
    assert f"| written by | {manifest.generator} |" in lines
    size = (tuned_bundle / "onnx/model.onnx").stat().st_size / 1e6
    assert any(
        line.startswith(f"| fp32 | `onnx/model.onnx` | cpu | {size:.1f} | ") for line in lines
    )
    # The strings are data, which may be private: only their counts and hash are in it.
    long_words = [word for word in words if len(word) > 9]
    assert long_words
    assert not [word for word in long_words if word in text]


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "mirror"])
def test_each_system_is_named_by_its_own_paper(bundle, name):
    card = model_card(dataclasses.replace(Manifest.read(bundle), recipe={"system": name}))
    assert f"by {SYSTEMS[name].paper}" in card
    assert name == "cf" or "Mirror-BERT" not in card  # BERT-CF begins with it


def test_the_card_follows_from_the_manifest(tuned_bundle):
    assert (tuned_bundle / "README.md").read_text() == model_card(Manifest.read(tuned_bundle))


def test_the_card_is_not_among_the_hashed_files(tuned_bundle):
    assert "README.md" not in Manifest.read(tuned_bundle).files


def test_scores_of_every_variant(bundle):
    manifest = Manifest.read(bundle)
    fp32 = manifest.variant()
    int8 = dataclasses.replace(fp32, precision="int8", parity=fp32.parity | {"spearman": 0.5})
    unchecked = dataclasses.replace(fp32, target="cuda", parity=None, unchecked="no CUDA here")
    text = model_card(
        dataclasses.replace(manifest, variants={"fp32": fp32, "int8": int8, "fp16-cuda": unchecked})
    )
    rows = [line for line in text.splitlines() if "`onnx/model.onnx`" in line]
    assert rows[1].endswith("| 0.5 |")
    assert rows[0].endswith("|  |")
    assert "`fp16-cuda` was not compared with PyTorch: no CUDA here" in text


def test_cells_cannot_break_the_table(bundle):
    data = {"source": "a|b\n| evil | row |", "sha256": "0", "strings": 1}
    text = model_card(dataclasses.replace(Manifest.read(bundle), data=data))
    assert "| source | a\\|b \\| evil \\| row \\| |" in text.splitlines()


@pytest.mark.parametrize("family", tiers(["bert", "roberta"], fast=["bert"]))
def test_the_examples_run(tiny_bundle, family, tmp_path):
    """Those with mirror_rt and with onnxruntime alone, as they stand in the card."""
    import numpy as np

    from mirror_rt import Encoder

    bundle = tiny_bundle(family)
    (tmp_path / "bundle").symlink_to(bundle)
    blocks = re.findall(r"```python\n(.*?)```", (bundle / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    show = {0: "vectors", 1: "vector"}
    expected = Encoder.load(bundle).encode(["one string", "another"])
    for i, name in show.items():
        code = f"{blocks[i]}\nimport numpy\nnumpy.save('{name}.npy', {name})"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, atol=RUN_ERROR)
    np.testing.assert_allclose(np.load(tmp_path / "vector.npy"), expected[0], atol=RUN_ERROR)


def test_licences(tiny_bert, tmp_path, caplog, default_model):
    def of(**files):
        for path in tmp_path.iterdir():
            path.unlink()
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        return base_license("some/model", tmp_path)

    assert of() is None
    assert of(README_md=CARD) == "cc-by-4.0"
    assert of(README_md="# no front matter") is None
    assert of(README_md="---\nlanguage: en\n---\n", LICENSE="MIT License\n\nCopyright") == "mit"
    apache = " " * 30 + "Apache License\n" + " " * 27 + "Version 2.0, January 2004\n"
    assert of(LICENSE_txt=apache) == "apache-2.0"
    assert of(LICENSE="All rights reserved. MIT License is not granted.") is None
    assert of(README_md="---\nlicense: [mit\n---\n") is None
    assert "its front matter cannot be read, the licence stays unknown" in caplog.text
    assert base_license("all-MiniLM-L6-v2", default_model) == "apache-2.0"
    assert base_license(str(default_model), default_model) is None  # any folder, for all we know
