"""Ready models by their name: from an index of pip's, into the cache, offline afterwards."""

import dataclasses
import json
import runpy
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from mirror_rt import Encoder
from mirror_rt.bundle import ready_models
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.bundle.ready_models import READY_MODELS, pin_of
from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.server import ServerConfig, load_models
from paths import ROOT
from rounding import RUN_ERROR

NAME = "all-MiniLM-L6-v2"
TEXTS = ["a river", "the old town"]


@pytest.fixture(scope="module")
def write_wheel():
    return runpy.run_path(str(ROOT / "deploy/default_model.py"))["write_wheel"]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An empty folder where pip looks, and nowhere else, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def release(bundle, monkeypatch):
    """The ready model as if the tiny bundle were what was released."""
    record = json.loads((bundle / "mirror.json").read_text())["files"]
    files = {name: record[name]["sha256"] for name in ("onnx/model.onnx", "tokenizer.json")}
    model = dataclasses.replace(READY_MODELS[0], files=files, pin=pin_of(Manifest.read(bundle)))
    monkeypatch.setattr(ready_models, "READY_MODELS", (model,))
    return model


def test_a_model_by_its_name(index, bundle, release, write_wheel, caplog, tmp_path):
    assert write_wheel(release, bundle, index).name == "mirror_rt_default-1.0.0-py3-none-any.whl"
    encoder = Encoder.load(NAME)
    np.testing.assert_array_equal(encoder.encode(TEXTS), Encoder.load(bundle).encode(TEXTS))
    assert encoder.folder == tmp_path / "cache/bundles/all-MiniLM-L6-v2-1.0.0"
    assert "fetching all-MiniLM-L6-v2 into" in caplog.text
    assert not list(encoder.folder.glob("**/*.py"))
    shutil.rmtree(index)  # what is in the cache needs no index
    for name in (NAME, f"sentence-transformers/{NAME}"):
        assert Encoder.load(name, offline=True).folder == encoder.folder


def test_every_command_takes_the_name(index, bundle, release, write_wheel, cli, tmp_path):
    write_wheel(release, bundle, index)
    (tmp_path / "texts.txt").write_text("a river\n")
    out = tmp_path / "vectors.npy"
    done = cli("encode", "--model", NAME, "--input", tmp_path / "texts.txt", "--output", out)
    assert done.code == 0, done.err
    assert np.load(out).shape == (1, 32)
    assert "every SHA-256 verified" in cli("info", NAME).out
    models = load_models(NAME, ServerConfig())
    assert list(models.by_name) == [NAME]  # not that of the folder in the cache


@pytest.mark.full
def test_a_wheel_of_ones_own_has_a_local_version(index, bundle, write_wheel, capsys):
    wheel = write_wheel(READY_MODELS[0], bundle, index)
    assert wheel.name == "mirror_rt_default-1.0.0+local-py3-none-any.whl"
    assert "not the bundle of the release: its pin is" in capsys.readouterr().err
    assert Encoder.load(NAME).encode("a").shape == (32,)


@pytest.mark.full
def test_the_wheel_is_the_same_bytes_again_and_installs(bundle, release, write_wheel, tmp_path):
    first, second = (write_wheel(release, bundle, tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
            "--target", str(tmp_path / "site"), str(first)]  # fmt: skip
    subprocess.run(line, check=True)
    assert (tmp_path / "site/mirror_rt_default/mirror.json").is_file()


def test_an_installed_wheel_is_used_where_it_is(
    index, bundle, release, write_wheel, tmp_path, monkeypatch
):
    with zipfile.ZipFile(write_wheel(release, bundle, tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert Encoder.load(NAME, offline=True).folder == tmp_path / "site/mirror_rt_default"


@pytest.mark.parametrize("version", ["1.0.0", "1.0.0+local", "2.0.0"])
def test_an_installed_wheel_is_compared_with_its_pin(
    index, bundle, release, write_wheel, tmp_path, monkeypatch, caplog, version
):
    with zipfile.ZipFile(write_wheel(release, bundle, tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    [information] = (tmp_path / "site").glob("*.dist-info")
    metadata = (
        (information / "METADATA").read_text().replace("Version: 1.0.0", f"Version: {version}")
    )
    (information / "METADATA").write_text(metadata)
    manifest = tmp_path / "site/mirror_rt_default/mirror.json"
    changed = {"prompts": {"own": "say "}, "default_prompt_name": "own"}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changed))
    monkeypatch.syspath_prepend(tmp_path / "site")
    if version == "1.0.0+local":  # which nobody has released
        assert Encoder.load(NAME, offline=True).folder == manifest.parent
        return
    with pytest.raises(BundleError, match="is not on this machine"):
        Encoder.load(NAME, offline=True)
    assert "its mirror.json is not that of the release 1.0.0" in caplog.text


def test_a_changed_file_is_refused_and_nothing_is_kept(
    index, bundle, release, write_wheel, tmp_path, monkeypatch
):
    wheel = write_wheel(release, bundle, tmp_path)
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(index / wheel.name, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith("onnx/model.onnx"):
                data = data[:-1] + bytes([data[-1] ^ 1])
            target.writestr(entry.filename, data)
    with pytest.raises(
        BundleIntegrityError, match=r"nothing was kept: .*: onnx/model.onnx has SHA"
    ):
        Encoder.load(NAME)
    shutil.copy(wheel, index)  # whole in itself, but not what was released
    other = dataclasses.replace(release, pin="0" * 64)
    monkeypatch.setattr(ready_models, "READY_MODELS", (other,))
    with pytest.raises(
        BundleIntegrityError, match=r"its mirror\.json is not that of the release 1.0.0"
    ):
        Encoder.load(NAME)
    assert not list((tmp_path / "cache").glob("bundles/*"))


def test_what_cannot_be_fetched_is_explained(index, tmp_path):
    with pytest.raises(BundleError, match=r"offline forbids fetching it.* pip install mirror-rt-d"):
        Encoder.load(NAME, offline=True)
    with pytest.raises(BundleError, match=r"cannot fetch mirror-rt-default==1.0.0: .*PIP_FIND_LIN"):
        Encoder.load(NAME)
    with pytest.raises(BundleError, match=r"no such folder.*all-MiniLM-L6-v2.*mirror-rt export"):
        Encoder.load("all-minilm")


def test_a_cache_that_cannot_be_written_is_named(index, bundle, release, write_wheel, monkeypatch):
    write_wheel(release, bundle, index)
    monkeypatch.setenv("MIRROR_RT_CACHE", "/proc/none")
    with pytest.raises(BundleError, match=r"cannot be kept in /proc/none.*MIRROR_RT_CACHE names"):
        Encoder.load(NAME)


def test_a_failing_fetch_has_a_short_traceback(index):
    with pytest.raises(BundleError) as found:
        Encoder.load(NAME)
    assert [entry.name for entry in found.traceback] == [
        "test_a_failing_fetch_has_a_short_traceback", "load", "_find",
    ]  # fmt: skip


def test_an_environment_without_pip(index, monkeypatch):
    """As those that uv makes."""
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda line, **rest: real([line[0], "-S", *line[1:]], **rest)
    )
    with pytest.raises(BundleError, match=r"this environment has no pip.*uv pip install"):
        Encoder.load(NAME)


def test_from_a_hub_of_ones_own(index, bundle, hub, monkeypatch, tmp_path):
    files = {path.relative_to(bundle).as_posix(): path.read_bytes()
             for path in bundle.rglob("*") if path.is_file()}  # fmt: skip
    hub.add(f"owner/{NAME}", files)
    monkeypatch.setenv("MIRROR_RT_BUNDLE_OWNER", "owner")
    np.testing.assert_allclose(
        Encoder.load(NAME).encode(TEXTS), Encoder.load(bundle).encode(TEXTS), atol=RUN_ERROR
    )
    assert not (tmp_path / "cache/bundles").exists()


@pytest.mark.full
def test_without_torch_an_evaluation_takes_the_bundle(
    index, bundle, release, write_wheel, cli, tmp_path, monkeypatch
):
    write_wheel(release, bundle, index)
    monkeypatch.setattr("mirror_rt.cli.common.find_spec", lambda name: None)
    (tmp_path / "texts.txt").write_text("a river\nthe town\n")
    done = cli("evaluate", "geometry", "--model", NAME, "--texts", tmp_path / "texts.txt")
    assert done.code == 0, done.err
