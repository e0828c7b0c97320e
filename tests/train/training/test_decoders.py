"""Mirror-BERT on decoders: pooled by the last token or the mean, without [MASK] or [PAD]."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from mirror_export import ExportConfig, export_bundle
from mirror_rt import ConfigError, Encoder
from mirror_rt.bundle.manifest import Manifest
from mirror_train import TorchEncoder, TrainConfig, load_recipe, load_training_data, tune
from mirror_train.training.loop import Trainer
from rounding import GATE
from tiers import tiers

TEXTS = ["the river", "a", "old town on the river", "doctor " * 30]
FAMILIES = ["qwen3", "qwen2", "llama", "mistral", "gemma3_text"]


@pytest.fixture
def run(words_file, tmp_path):
    """Tunes a folder on 400 words, with spans left out or masked."""

    def make(model, out="tuned", *, recipe=None, **options):
        changes = {"batch_size": 40, "epochs": 1, "learning_rate": 1e-3} | (recipe or {})
        config = TrainConfig(
            recipe=load_recipe("sentence").replace(**changes),
            out=tmp_path / out,
            model=str(model),
            precision="fp32",
            **options,
        )
        return tune(load_training_data(words_file), config)

    return make


def bare(folder, out):
    """A copy of a folder whose tokenizer has neither a mask token nor one to pad with, as Llama."""
    shutil.copytree(folder, out)
    path = out / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"mask_token": None, "pad_token": None,
                                         "eos_token": "[SEP]"}))  # fmt: skip
    (out / "special_tokens_map.json").unlink(missing_ok=True)
    return out


@pytest.mark.parametrize("family", tiers(FAMILIES, fast=("qwen3",)))
@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
def test_the_vectors_of_training_are_those_of_the_folder_and_of_a_bundle(
    family, pooling, run, tiny_model, tmp_path, monkeypatch
):
    seen, original = {}, Trainer.run

    def trained(self, *given, **options):
        stats = original(self, *given, **options)
        seen["z"] = self.forward.head, self.forward.model
        return stats

    monkeypatch.setattr(Trainer, "run", trained)
    report = run(bare(tiny_model(family), tmp_path / "base"), pooling=pooling)
    losses = report.stats.losses
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    head, model = seen["z"]
    assert head.pooling == pooling
    torch_encoder = TorchEncoder.load(report.out)
    assert torch_encoder.head.pooling == pooling
    trained_model = dataclasses.replace(torch_encoder.pretrained, model=model)
    of_run = TorchEncoder(trained_model, head=head)
    expected = of_run.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(torch_encoder.encode(TEXTS), expected, atol=1e-6)
    with Encoder.load(report.out) as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=GATE)
    export_bundle(ExportConfig(str(report.out), tmp_path / "bundle"))
    with Encoder.load(tmp_path / "bundle", providers="cpu") as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=GATE)
    assert Manifest.read(tmp_path / "bundle").pooling == pooling


def test_the_last_token_is_the_default_and_the_first_is_refused(run, tiny_model):
    folder = tiny_model("qwen3")
    assert run(folder, recipe={"pooling": "cls"}).manifest.pooling == "lasttoken"
    with pytest.raises(
        ConfigError, match=r"the first token, which in .* sees no other: pass --poo"
    ):
        run(folder, "cls", pooling="cls")
    assert run(tiny_model("llama"), "both", pooling="cls").manifest.pooling == "cls"


def test_spans_of_tokens_need_a_mask_token(run, tiny_model, tmp_path):
    folder = bare(tiny_model("qwen3"), tmp_path / "base")
    with pytest.raises(ConfigError, match="no mask token: pass --span-length 0, or --span-mask "):
        run(folder, recipe={"span_mask": "tokens"})
