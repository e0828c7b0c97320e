"""Pickled tensors that are compressed, which torch.save never writes: a small file of any size."""

import shutil
import zipfile

import pytest
import torch

from mirror_rt.errors import ConfigError, ModelError
from mirror_train.model.dense import read_weights, refuse_compressed
from mirror_train.model.pretrained import load_pretrained
from mirror_train.training.checkpoint import CheckpointStore


def compressed(path, values):
    torch.save(values, path)
    with zipfile.ZipFile(path) as source:
        contents = {one.filename: source.read(one) for one in source.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in contents.items():
            target.writestr(name, data)


ZEROS = {"linear.weight": torch.zeros(1 << 18)}


def test_weights(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    for path in folder.glob("*.safetensors"):
        path.unlink()
    compressed(folder / "pytorch_model.bin", ZEROS)
    for read in (read_weights, load_pretrained):
        with pytest.raises(ModelError, match=r"model\.bin cannot be read: it is compressed"):
            read(folder)


def test_a_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path / "out", {"seed": 1})
    store.folder.mkdir(parents=True)
    compressed(store.folder / "step-00000001.pt", ZEROS)
    with pytest.raises(ConfigError, match=r"step-00000001\.pt cannot be read: it is compressed"):
        store.load()


def test_what_torch_writes_is_taken(tmp_path):
    torch.save(ZEROS, tmp_path / "new.pt")
    torch.save(ZEROS, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for path in tmp_path.iterdir():
        refuse_compressed(path)
