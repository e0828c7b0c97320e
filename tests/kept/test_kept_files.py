"""Files that each released version wrote, in a folder of its own: this version reads them.

Where a format changes, these tests stay: `kept_files.py` writes the folder of a version when that
is released. Those of the version to come are made for the tests.
"""

import json
import os
import shutil

import numpy as np
import pyarrow.parquet
import pytest

from mirror_rt import (
    BundleVersionError,
    ConfigError,
    Encoder,
    LanguagePack,
    Predictor,
    Reranker,
    __version__,
)
from mirror_rt.bulk import DatasetConfig, merge_manifest
from mirror_rt.heads.task_heads import Heads
from paths import TESTS
from rounding import RUN_ERROR, STATIC_PEER

KEPT = TESTS / "kept"
VERSIONS = {path.name for path in KEPT.iterdir() if path.name[0].isdigit()}


@pytest.fixture(params=sorted({*VERSIONS, __version__}))
def kept(request, made_once, tmp_path):
    """A copy of the files of a version."""
    from kept_files import write

    released = request.param in VERSIONS
    files = KEPT / request.param if released else made_once("kept-files", write)
    folder = shutil.copytree(files, tmp_path / request.param)
    manifest = json.loads((folder / "job" / "_manifest.json").read_text())
    for part in manifest["parts"].values():  # a job knows when its input changed, git does not
        source = folder / "texts" / part["source"]
        os.utime(source, ns=(part["source_modified"],) * 2)
    return folder


@pytest.fixture
def texts(kept):
    lines = (kept / "texts" / "a.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize(("variant", "least"), [("fp32", 1 - RUN_ERROR), ("int8", 0.95)])
@pytest.mark.parametrize("provider", ["auto", "onnxruntime"])
def test_bundle(kept, texts, variant, least, provider):
    options = {} if provider == "auto" else {"providers": ["CPUExecutionProvider"]}
    with Encoder.load(kept / "pack" / "en", variant=variant, verify=True, **options) as encoder:
        vectors = encoder.encode(texts)
    assert (vectors * np.load(kept / "vectors.npy")).sum(axis=1).min() > least


def test_pack(kept, texts):
    with LanguagePack.load(kept / "pack") as pack:
        assert sorted(pack.languages) == ["en", "ru"]
        english, russian = (pack.encode(texts, lang=name) for name in ("en", "ru"))
    np.testing.assert_allclose(english, np.load(kept / "vectors.npy"), atol=RUN_ERROR)
    assert np.abs(russian - english).max() > 0.01


def test_heads(kept, texts):
    predicted = Predictor.load(kept / "pack" / "en").predict("sign", texts)
    assert set(predicted.labels) <= {"minus", "plus"}


@pytest.mark.parametrize("provider", ["auto", "onnxruntime"])
def test_reranker(kept, texts, provider):
    """Its prompt and the side on which it cuts count, too."""
    from kept_files import pairs_of

    options = {} if provider == "auto" else {"providers": ["CPUExecutionProvider"]}
    with Reranker.load(kept / "reranker", verify=True, **options) as reranker:
        scores = reranker.predict(pairs_of(texts))
        other = reranker.predict(pairs_of(texts), prompt="")
    np.testing.assert_allclose(scores, np.load(kept / "scores.npy"), atol=RUN_ERROR)
    assert np.abs(scores - other).max() > 1e-4


def test_static_encoder(kept, texts):
    with Encoder.load(kept / "static", verify=True) as encoder:
        vectors = encoder.encode(texts)
    np.testing.assert_allclose(vectors, np.load(kept / "static.npy"), atol=STATIC_PEER)


def test_bulk_job(kept):
    names = (str(kept / name) for name in ("pack/en", "texts", "job"))
    manifest = merge_manifest(DatasetConfig(*names))
    assert (manifest["blocks"], manifest["rows"]) == (1, 6)
    table = pyarrow.parquet.read_table(kept / "job" / "a.jsonl-00000.parquet")
    vectors = np.array(table["embedding"].to_pylist(), np.float32)
    np.testing.assert_allclose(vectors, np.load(kept / "vectors.npy"), atol=RUN_ERROR)


def test_checkpoint(kept, texts):
    """The version that wrote a checkpoint goes on from it; a later one does, or says why not."""
    from kept_files import tune_kept

    from mirror_train import TorchEncoder

    try:
        tuned = tune_kept(kept, "en", resume=True).out
    except ConfigError:
        if kept.name == __version__:
            raise
        return
    vectors = TorchEncoder.load(tuned).encode(texts)
    np.testing.assert_allclose(vectors, np.load(kept / "vectors.npy"), atol=1e-4)


def test_server_configuration(kept, command):
    done = command("serve", "--config", kept / "serve.toml", "--check", cwd=kept)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("file", "open_it"),
    [
        ("pack/en/mirror.json", lambda kept: Encoder.load(kept / "pack" / "en")),
        ("pack/pack.json", lambda kept: LanguagePack.load(kept / "pack")),
        ("reranker/mirror.json", lambda kept: Reranker.load(kept / "reranker")),
        ("static/mirror.json", lambda kept: Encoder.load(kept / "static")),
        ("pack/en/heads/heads.json", lambda kept: Heads.read(kept / "pack" / "en")),
    ],
)
def test_a_newer_format_is_refused_by_name(kept, file, open_it):
    path = kept / file
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"format_version": values["format_version"] + 1}))
    with pytest.raises(BundleVersionError, match="pip install -U mirror-rt"):
        open_it(kept)


def test_a_newer_checkpoint_is_refused_by_name(kept):
    import torch
    from kept_files import tune_kept

    path = kept / "tuned" / "en.checkpoints" / "step-00000001.pt"
    torch.save(torch.load(path, weights_only=True) | {"format": 99}, path)
    with pytest.raises(ConfigError, match="it has format 99, this version reads"):
        tune_kept(kept, "en", resume=True)
