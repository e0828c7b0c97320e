"""Base models and bundles by their hub names, against a stand-in of the hub (hub_server.py)."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from mirror_rt import ConfigError, Encoder, Manifest, ModelError
from mirror_rt.bundle.push import push
from mirror_train.model.pretrained import load_pretrained

NAME = "owner/base"


@pytest.fixture
def files(tiny_bert):
    return {p.name: p.read_bytes() for p in tiny_bert.iterdir() if p.is_file()}


@pytest.fixture
def pickled(tiny_bert, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(load_file(tiny_bert / "model.safetensors"), path)
    return path.read_bytes()


def test_a_base_model_by_name(hub, files, tmp_path, cli, words_file):
    commit = hub.add(NAME, files | {"README.md": b"---\nlicense: mit\n---\n"})
    hub.add(NAME, {"README.md": b"---\nlicense: apache-2.0\n---\n"})
    tuned = tmp_path / "tuned"
    result = cli("tune", "--model", NAME, "--revision", commit, "--recipe", "word", "--data",
                 words_file, "--out", tuned, "--pooling", "mean", "--epochs", 1)  # fmt: skip
    assert result.code == 0, result.err
    base = Manifest.read(tuned, "mirror_rt encoder").base_model
    assert (base["name"], base["revision"], base["license"]) == (NAME, commit, "mit")


def test_safetensors_alone_are_downloaded(hub, files, pickled):
    others = {"onnx/model.onnx": b"x", "tf_model.h5": b"x", "pytorch_model.bin": pickled}
    commit = hub.add(NAME, files | others)
    assert load_pretrained(NAME).revision == commit
    assert "model.safetensors" in hub.downloads()
    assert not set(others) & set(hub.downloads())
    assert load_pretrained(NAME, offline=True).revision == commit


def test_pickled_weights_where_there_are_no_others(hub, files, pickled, caplog):
    del files["model.safetensors"]
    commit = hub.add(NAME, files | {"pytorch_model.bin": pickled})
    assert load_pretrained(NAME).revision == commit
    assert "holds pickled weights" in caplog.text
    assert load_pretrained(NAME, offline=True).revision == commit


def test_errors_of_a_base_model(hub, files, monkeypatch):
    hub.add(NAME, files)
    with pytest.raises(ModelError, match="owner/base has no revision 'v9' on http"):
        load_pretrained(NAME, revision="v9")
    with pytest.raises(ModelError, match="'owner/nothing' is neither a folder here nor found on"):
        load_pretrained("owner/nothing")
    hub.break_off["model.safetensors"] = 100
    said = "there is no folder owner/base, and of a hub: .* cannot be reached, or broke off"
    with pytest.raises(ModelError, match=said):
        load_pretrained(NAME)
    hub.add("other/base", files, private=True)
    with pytest.raises(ModelError, match="a private repository needs a token"):
        load_pretrained("other/base")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="nor found whole in the local cache"):
        load_pretrained("owner/third")


def test_a_full_disk_is_said_as_such(hub, files, monkeypatch):
    hub.add(NAME, files)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(OSError, match="No space left on device"):
        load_pretrained(NAME)


def test_a_revision_goes_with_a_name(tiny_bert, bundle, cli, tmp_path):
    with pytest.raises(ConfigError, match=r"revision 'v1' goes with a hub name, and .* is a path"):
        load_pretrained(tiny_bert, revision="v1")
    with pytest.raises(ConfigError, match="revision 'v1' goes with a hub name"):
        Encoder.load(bundle, revision="v1")
    (tmp_path / "t.txt").write_text("a\nb\n")
    for arguments in (
        ("info", bundle),
        ("export", tiny_bert, "--out", tmp_path / "x", "--pooling", "mean"),
        ("evaluate", "geometry", "--model", bundle, "--texts", tmp_path / "t.txt"),
    ):
        result = cli(*arguments, "--revision", "v1")
        assert result.code == 2
        assert "revision 'v1' goes with a hub name" in result.err


def test_load_checks_the_graph_it_needs(bundle_copy):
    shutil.copyfile(bundle_copy / "onnx/model.onnx", bundle_copy / "onnx/model_int8.onnx")
    assert Encoder.load(bundle_copy).dimension == 32


def test_a_bundle_by_name_from_every_command(hub, bundle, cli, tmp_path):
    pushed = push(bundle, NAME)
    (tmp_path / "t.txt").write_text("the river\na\n")
    for arguments in (
        ("info", NAME),
        ("encode", "--model", NAME, "--input", tmp_path / "t.txt", "--output", "-"),
    ):
        result = cli(*arguments, "--revision", pushed.commit)
        assert result.code == 0, result.err
