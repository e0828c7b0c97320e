"""What is fetched is what was released or listed, and nothing else is unpacked or kept."""

import dataclasses
import json

import pytest

from folder_contents import contents
from mirror_rt import BundleError, BundleIntegrityError, LanguagePack
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.bundle.pull import pull
from mirror_rt.server import ServerConfig, load_models
from server_process import make_pack

REPOSITORY = "owner/name"


@pytest.fixture
def pack(bundle, tmp_path):
    return make_pack(tmp_path / "pack", {"fr": bundle, "en": bundle}, "fr")


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
