"""No way out of a folder takes what is behind a link out of it: pushes, copies of packs, maps."""

import os

import pytest

from mirror_rt import BundleError
from mirror_rt.bundle.pack_index import refuse_links_out
from mirror_rt.bundle.push import push
from server_process import make_pack

NAME = "owner/name"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.mkdir()
    (path / "token").write_text("hf_secret")
    return path


@pytest.fixture
def pack(bundle, tmp_path):
    return make_pack(tmp_path / "pack", {"en": bundle}, "en")


def card(folder, secret):
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "README.md").symlink_to(secret / "token")


def extra_file(folder, secret):
    (folder / "notes.txt").symlink_to(secret / "token")


def environment(folder, secret):
    (folder / "LICENSE").symlink_to("/proc/self/environ")


def by_a_folder(folder, secret):
    (folder / "more").symlink_to(secret)


def relative(folder, secret):
    (folder / "notes.txt").symlink_to(os.path.relpath(secret / "token", folder))


def through_a_second_link(folder, secret):
    (folder / "step").symlink_to("..")
    (folder / "notes.txt").symlink_to("step/secret/token")


WAYS = [card, extra_file, environment, by_a_folder, relative, through_a_second_link]


@pytest.mark.parametrize("way", WAYS)
def test_a_push_of_a_pack(hub, pack, secret, way):
    way(pack, secret)
    with pytest.raises(BundleError, match=r"is a link to .*, outside of .*: put a copy"):
        push(pack, NAME)
    assert NAME not in hub.repositories


@pytest.mark.parametrize("way", WAYS)
def test_a_push_of_a_bundle(hub, bundle_copy, secret, way):
    way(bundle_copy, secret)
    with pytest.raises(BundleError, match="is a link to"):
        push(bundle_copy, NAME)
    assert NAME not in hub.repositories


def test_a_recorded_file_that_is_a_link(hub, bundle_copy, tmp_path):
    """Its hash is right, and it is outside nevertheless."""
    outside = tmp_path / "model.onnx"
    (bundle_copy / "onnx/model.onnx").rename(outside)
    (bundle_copy / "onnx/model.onnx").symlink_to(outside)
    with pytest.raises(BundleError, match="is a link to"):
        push(bundle_copy, NAME)


def test_aligned_and_kept_packs(pack, secret, tmp_path):
    from mirror_export.pack.align import align_pack
    from mirror_export.pack.staging import _copy_bundle

    card(pack / "en", secret)
    with pytest.raises(BundleError, match="is a link to"):
        align_pack(pack, ["en-fr=words.tsv"], out=tmp_path / "out")
    with pytest.raises(BundleError, match="is a link to"):
        _copy_bundle(pack / "en", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_links_within_the_folder_are_taken(hub, pack):
    (pack / "LICENSE").write_text("free")
    (pack / "COPYING").symlink_to("LICENSE")
    refuse_links_out(pack)
    push(pack, NAME)
    assert hub.files(NAME)["COPYING"] == b"free"


def test_links_to_nothing_and_to_themselves(tmp_path):
    for target in ("nothing", "me"):
        (tmp_path / "me").unlink(missing_ok=True)
        (tmp_path / "me").symlink_to(target)
        with pytest.raises(BundleError, match="is a link to"):
            refuse_links_out(tmp_path)
