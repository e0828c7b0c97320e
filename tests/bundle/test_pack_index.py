"""pack.json and what reads it: no torch here."""

import json
import shutil

import pytest

from command_errors import one_line_error
from mirror_rt import BundleError, BundleIntegrityError, BundleVersionError, Encoder, LanguagePack
from mirror_rt.bundle.pack_index import PackedBundle, PackIndex


@pytest.fixture
def pack(bundle, tmp_path):
    """A pack of two copies of a bundle."""
    folder = tmp_path / "pack"
    for name in ("fr", "en"):
        shutil.copytree(bundle, folder / name)
    entries = {name: PackedBundle.describe(folder, name, {}) for name in ("fr", "en")}
    PackIndex(entries, default="fr").write(folder)
    return folder


def edit(pack, bundle=None, **changes):
    path = pack / "pack.json"
    values = json.loads(path.read_text())
    (values["bundles"][bundle] if bundle else values).update(changes)
    path.write_text(json.dumps(values))


def test_round_trip(pack):
    index = PackIndex.read(str(pack))
    assert index.to_dict() == json.loads((pack / "pack.json").read_text())
    assert list(index.bundles) == ["fr", "en"]
    entry = index.bundles["en"]
    assert (entry.path, entry.dimension, entry.variants) == ("en", 32, ["fp32"])
    assert entry.verify(pack).dimension == 32


def test_a_bundle_of_a_pack_is_a_bundle(pack, bundle):
    encoder = Encoder.load(pack / "fr")
    assert (encoder.encode("a") == Encoder.load(bundle).encode("a")).all()


def test_a_pack_is_no_bundle(pack, cli, tmp_path):
    with pytest.raises(BundleError, match=r"is a pack of 2 bundles: name one .*pack/fr .*fr, en"):
        Encoder.load(pack)
    with pytest.raises(BundleError, match=r"has no zh: it has fr, en"):
        Encoder.load(pack / "zh")
    (tmp_path / "x").write_text("a\nb\n")
    done = cli("evaluate", "geometry", "--texts", tmp_path / "x", "--model", pack)
    one_line_error(done, code=1, contains="is a pack of 2 bundles")


def test_info(pack, cli):
    result = cli("info", pack)
    assert result.code == 0, result.err
    assert result.out.splitlines()[1].split()[:2] == ["fr", "-"]
    assert "default fr; every SHA-256 verified" in result.out
    values = json.loads(cli("info", pack, "--json").out)
    assert values["verified"] is True
    assert values["default"] == "fr"


def test_info_verifies_every_bundle(pack, cli):
    path = pack / "en" / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1])
    one_line_error(cli("info", pack), code=1, contains="en is damaged: tokenizer.json has")


def test_a_bundle_that_is_not_the_one_of_the_index(pack):
    values = json.loads((pack / "en" / "mirror.json").read_text())
    (pack / "en" / "mirror.json").write_text(json.dumps(values | {"language": "zh"}))
    with pytest.raises(BundleIntegrityError, match=r"is not the one that pack\.json names"):
        PackIndex.read(pack).bundles["en"].verify(pack)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2, this mirror_rt reads up to 1"),
        ({"format_version": True}, "format_version True is invalid"),
        ({"format": "mirror_rt bundle"}, "says 'mirror_rt bundle', expected 'mirror_rt pack'"),
        ({"default": "zh"}, r"default is 'zh', expected one of \['fr', 'en'\]"),
        ({"default": 1}, "default is 1, expected a string"),
        ({"bundles": {}}, "default is 'fr', expected one of"),
        ({"bundles": []}, "is damaged"),
        ({"bundles": {"fr": 1}}, "is damaged"),
        ({"bundles": {"fr": {"path": "fr"}}}, "is damaged"),
    ],
    ids=str,
)
def test_a_damaged_index_is_refused(pack, changes, message):
    edit(pack, **changes)
    kind = BundleVersionError if changes.get("format_version") == 2 else BundleError
    with pytest.raises(kind, match=message):
        PackIndex.read(pack)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "../pack/fr"}, "expected a path inside the folder"),
        ({"path": "/etc"}, "expected a path inside the folder"),
        ({"path": "..\\fr"}, "expected a path inside the folder"),
        ({"path": ""}, "expected a path inside the folder"),
        ({"path": "."}, "expected a path inside the folder"),
        ({"path": "link"}, "leads out of the pack"),
        ({"path": "x" * 300}, "path is 'x.*expected a path inside the folder"),
        ({"path": "a:b"}, "expected a path inside the folder"),
        ({"path": "loop"}, r"bundles\.fr\.path is 'loop'"),
        ({"path": 1}, r"bundles\.fr\.path is 1, expected a string"),
        ({"dimension": "32"}, r"dimension is '32', expected an integer"),
        ({"dimension": 0}, r"dimension is 0, expected a number in 1 \.\. 65,536"),
        ({"dimension": 10**12}, "dimension is 1000000000000, expected a number"),
        ({"variants": [1]}, r"variants\[0\] is 1, expected a string"),
        ({"language": "no tag"}, "language of the bundle 'fr': 'no tag' is not a language tag"),
        ({"language": "\ud800"}, r"bundles\.fr\.language is '.*', which is not valid Unicode"),
        ({"manifest_sha256": None}, "manifest_sha256 is None, expected a string"),
    ],
    ids=str,
)
def test_a_damaged_entry_is_refused(pack, changes, message):
    (pack / "link").symlink_to(pack.parent)
    (pack / "loop").symlink_to("loop")
    edit(pack, "fr", **changes)
    with pytest.raises(BundleError, match=message):
        LanguagePack.load(pack)


def test_fields_of_a_later_writer_are_ignored(pack):
    edit(pack, "fr", later=1)
    edit(pack, later=1)
    assert PackIndex.read(pack).bundles["fr"].dimension == 32


def test_not_a_pack(bundle, tmp_path):
    with pytest.raises(BundleError, match=r"is not a pack: it has no pack\.json"):
        PackIndex.read(bundle)
    with pytest.raises(BundleError, match="no such folder"):
        PackIndex.read(tmp_path / "nowhere")
