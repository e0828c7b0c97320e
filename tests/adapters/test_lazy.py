"""What all adapters hold, and what they say where their library is missing."""

import asyncio
import gc
import json
import pickle
import shutil
import subprocess
import sys
import weakref

import numpy as np
import pytest

from mirror_rt import ConfigError, Encoder
from mirror_rt.adapters.lazy import LazyEncoder
from rounding import ANY_BATCH

ADAPTERS = {
    "langchain": "langchain_core",
    "llamaindex": "llama_index",
    "haystack": "haystack",
    "chroma": "chromadb",
    "qdrant": "qdrant_client",
    "lancedb": "lancedb",
    "sklearn": "sklearn",
    "mteb": "mteb",
}


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_the_package_imports_no_library():
    done = python(
        "import mirror_rt.adapters, mirror_rt.adapters.lazy, sys;"
        f"names = {[*ADAPTERS.values(), 'torch', 'pydantic']};"
        "print([name for name in names if name in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_missing_library_is_named():
    done = python(
        "import sys, importlib, importlib.abc, mirror_rt.adapters\n"
        f"adapters = {ADAPTERS}\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in adapters.values():\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "for adapter in adapters:\n"
        "    try:\n"
        "        importlib.import_module(f'mirror_rt.adapters.{adapter}')\n"
        "    except mirror_rt.MissingDependencyError as error:\n"
        "        print(error)\n"
    )
    assert done.stdout.splitlines() == [
        f"mirror_rt.adapters.{adapter} needs the package {library!r}, which is not installed: "
        f"pip install 'mirror-rt[{adapter}]'"
        for adapter, library in ADAPTERS.items()
    ], done.stderr


def test_one_session_for_all_of_one_name_as_long_as_any_lives(model, monkeypatch):
    monkeypatch.chdir(model.parent)
    one, two = LazyEncoder(str(model)), LazyEncoder(model.name)
    assert one.load() is two.load()
    assert pickle.loads(pickle.dumps(one)).load() is one.load()
    assert LazyEncoder(model, {"threads": 1}).load() is not one.load()
    freed = weakref.ref(one.load())
    del one, two
    gc.collect()
    assert freed() is None


def test_a_bundle_that_was_exported_again_is_loaded_again(model, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(model, folder)
    before = LazyEncoder(folder)
    vector = before.query("a")
    manifest = json.loads((folder / "mirror.json").read_text("utf-8"))
    manifest["prompts"]["query"] = "another "
    (folder / "mirror.json").write_text(json.dumps(manifest))
    assert np.abs(LazyEncoder(folder).query("a") - vector).max() > 0.01
    np.testing.assert_array_equal(before.query("a"), vector)


def test_stored_as_json(model):
    lazy = LazyEncoder(model, {"threads": 1}, {"truncate_dim": 8})
    config = json.loads(json.dumps(lazy.config()))
    assert config["model"] == str(model)
    assert LazyEncoder(**config).config() == lazy.config()
    of_an_encoder = LazyEncoder(Encoder.load(model, threads=1)).config()
    assert of_an_encoder["model_kwargs"]["threads"] == 1
    np.testing.assert_array_equal(LazyEncoder(**of_an_encoder).query("a")[:8],
                                  LazyEncoder(model).query("a")[:8])  # fmt: skip


class Client:
    """An encoder that is somewhere else."""

    dimension = 3

    def encode(self, inputs, **options):
        return np.ones((len(inputs), 3), dtype=np.float32)

    encode_query = encode_document = encode


def test_another_encoder(model):
    lazy = LazyEncoder(Client())
    assert lazy.documents(["a", "b"]).shape == (2, lazy.dimension)
    with pytest.raises(ConfigError, match="cannot be stored: give the path or hub name"):
        lazy.config()
    with pytest.raises(ConfigError, match="model_kwargs are for a path or name"):
        LazyEncoder(Client(), {"threads": 1})


@pytest.mark.parametrize(
    ("options", "dimension"),
    [
        ({}, 32),
        ({"truncate_dim": 9}, 9),
        ({"precision": "ubinary"}, 4),
        ({"precision": "binary", "truncate_dim": 9}, 2),
    ],
)
def test_dimension(model, options, dimension):
    lazy = LazyEncoder(model, None, options)
    assert lazy.dimension == dimension == lazy.documents(["a"]).shape[1]


def test_an_encoder_is_pickled_as_what_to_load(model, monkeypatch, tmp_path):
    monkeypatch.chdir(model.parent)
    encoder = Encoder.load(model.name, variant="fp32", threads=1, spinning="off")
    stored = pickle.dumps(encoder)
    assert len(stored) < 1000
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(stored)
    assert again.load_options == encoder.load_options
    np.testing.assert_array_equal(again.encode("a"), encoder.encode("a"))
    again.close()
    encoder.encode("a")  # each has a session of its own


@pytest.mark.parametrize("side", ["query", "document"])
def test_asynchronous_methods_have_the_prompts(encoder, side):
    expected = getattr(encoder, f"encode_{side}")(["a", "b"], truncate_dim=8)
    found = asyncio.run(getattr(encoder, f"aencode_{side}")(["a", "b"], truncate_dim=8))
    np.testing.assert_allclose(found, expected, atol=ANY_BATCH)
    one = asyncio.run(getattr(encoder, f"aencode_{side}")("a", prompt=""))
    np.testing.assert_allclose(one, encoder.encode("a"), atol=ANY_BATCH)
