"""Models that come with Python code of their own: run only where the user says so."""

import shutil

import numpy as np
import pytest
import transformers.dynamic_module_utils as dynamic

from json_files import change
from mirror_export import ExportConfig, export_bundle
from mirror_rt import Encoder, ModelError
from mirror_rt.bundle.families import GENERIC, family_of
from mirror_train import TorchEncoder
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import load_pretrained
from rounding import RUN_ERROR
from tiny_models import SENTENCES

CONFIGURATION = """
from transformers import BertConfig


class OwnConfig(BertConfig):
    model_type = "own"
"""
MODEL = """
from transformers import BertModel

from .configuration_own import OwnConfig


class OwnModel(BertModel):
    config_class = OwnConfig

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.last_hidden_state = output.last_hidden_state * 2 + 1
        return output
"""


@pytest.fixture(scope="module", autouse=True)
def modules_cache(tmp_path_factory):
    """Where transformers keeps its copies of such code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.syspath_prepend(dynamic.HF_MODULES_CACHE)
        yield


def with_code(base, folder, model_type="own"):
    shutil.copytree(base, folder)
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    (folder / "modeling_own.py").write_text(MODEL)
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    change(folder / "config.json", model_type=model_type, architectures=["OwnModel"], auto_map=code)
    return folder


@pytest.fixture
def model(tiny_bert, tmp_path):
    return with_code(tiny_bert, tmp_path / "own")


def test_it_is_refused_unless_trusted(model, cli, tmp_path):
    with pytest.raises(ModelError, match=r"\(own\) comes with code of its own: read it, and pass"):
        load_pretrained(model)
    for command in (["export", model, "--pooling", "mean"], ["tune", "--model", model, "--words",
                    "en", "--recipe", "word"]):  # fmt: skip
        result = cli(*command, "--out", tmp_path / "out")
        assert result.code == 1
        assert "pass --trust-remote-code" in result.err
        assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_bundle_of_trusted_code(model, tiny_bert, cli, succeed, tmp_path, caplog):
    """Through tuning and export: the code goes along, and the run time needs none of it."""
    words, tuned, bundle = tmp_path / "words.txt", tmp_path / "tuned", tmp_path / "bundle"
    words.write_text("\n".join(SENTENCES))
    succeed("tune", "--model", model, "--recipe", "word", "--data", words, "--out", tuned,
            "--batch-size", 4, "--epochs", 1, "--trust-remote-code")  # fmt: skip
    assert cli("export", tuned, "--out", bundle).code == 1
    result = succeed("export", tuned, "--out", bundle, "--trust-remote-code")
    assert "no fusion is known for the family 'own'" in result.err + caplog.text
    reference = TorchEncoder.load(tuned, trust_remote_code=True, device="cpu")
    assert type(reference.pretrained.model).__name__ == "OwnModel"
    found = Encoder.load(bundle).encode(SENTENCES)
    np.testing.assert_allclose(found, reference.encode(SENTENCES), atol=RUN_ERROR)
    for name in ("mirror.json", "config.json", "tokenizer_config.json"):
        assert str(tmp_path) not in (bundle / name).read_text()


@pytest.mark.full
def test_code_under_a_known_name_is_a_family_of_its_own(tiny_bert, tmp_path):
    """Without trust, transformers' own code of that name is what runs."""
    folder = with_code(tiny_bert, tmp_path / "renamed", "bert")
    known, own = (load_pretrained(folder, trust_remote_code=trust) for trust in (False, True))
    assert [type(loaded.model).__name__ for loaded in (known, own)] == ["BertModel", "OwnModel"]
    assert family_of(known.model) is not GENERIC
    assert family_of(own.model) is GENERIC
    out = tmp_path / "bundle"
    config = ExportConfig(
        str(folder), out, pooling="mean", trust_remote_code=True, parity_texts=SENTENCES
    )
    export_bundle(config)
    reference = TorchEncoder(own, head=Head(["mean"]))
    found = Encoder.load(out).encode(SENTENCES)
    np.testing.assert_allclose(found, reference.encode(SENTENCES), atol=RUN_ERROR)
