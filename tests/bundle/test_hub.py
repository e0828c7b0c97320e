"""push and pull against a stand-in of the hub (hub_server.py)."""

import dataclasses
import json
import os
import shutil
import socket

import numpy as np
import pytest

from command_errors import one_line_error
from hub_server import TOKEN
from mirror_rt import (
    BundleError,
    BundleIntegrityError,
    ConfigError,
    Encoder,
    HubError,
    Manifest,
    OutputExistsError,
)
from mirror_rt.bundle.manifest import record_files
from mirror_rt.bundle.pull import pull
from mirror_rt.bundle.push import push
from rounding import RUN_ERROR
from server_process import make_pack

NAME = "owner/encoder"
TEXTS = ["the river", "人生", "a"]


@pytest.fixture
def pushed(hub, bundle):
    return push(bundle, NAME)


@pytest.fixture
def two_graphs(bundle_copy):
    """A bundle of two variants, whose second graph has weights in a file of their own."""
    path = bundle_copy / "mirror.json"
    values = json.loads(path.read_text())
    shutil.copyfile(bundle_copy / "onnx/model.onnx", bundle_copy / "onnx/model_int8.onnx")
    shutil.copyfile(bundle_copy / "onnx/model.onnx", bundle_copy / "onnx/model_int8_mapped.onnx")
    (bundle_copy / "onnx/model_int8.onnx_data").write_bytes(b"weights")
    values["files"] = records(bundle_copy)
    second = values["variants"]["fp32"] | {"file": "onnx/model_int8.onnx", "precision": "int8"}
    values["variants"]["int8"] = second
    values["added_later"] = 1
    path.write_text(json.dumps(values))
    return bundle_copy


def records(folder):
    return {name: dataclasses.asdict(record) for name, record in record_files(folder).items()}


def visible(folder):
    return sorted(p.name for p in folder.iterdir())


def test_round_trip(hub, bundle, pushed, tmp_path):
    assert pushed.url == f"{hub.url}/{NAME}"
    assert pushed.commit == hub.repositories[NAME].branches["main"]
    assert not hub.repositories[NAME].private
    out = tmp_path / "pulled"
    pulled = pull(NAME, out)
    assert pulled.commit == pushed.commit
    assert (out / "mirror.json").read_bytes() == (bundle / "mirror.json").read_bytes()
    manifest = Manifest.read(out)
    manifest.verify(out)
    assert {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()} == {
        "mirror.json",
        "README.md",
        *manifest.files,
    }
    expected = Encoder.load(bundle).encode(TEXTS)
    np.testing.assert_array_equal(Encoder.load(out).encode(TEXTS), expected)
    # From the cache, whose links onnxruntime does not map: the graph with fused norms.
    np.testing.assert_allclose(Encoder.load(NAME).encode(TEXTS), expected, atol=RUN_ERROR)
    assert hub.leaked == []  # the token stays with the hub


def test_large_files_go_through_lfs_and_all_in_one_commit(hub, bundle, pushed):
    repository = hub.repositories[NAME]
    assert repository.messages == ["initial", "Push bert with mirror-rt"]
    tree = repository.commits[pushed.commit]
    graphs = {path for path in tree if path.endswith(".onnx")}
    assert {path for path, blob in tree.items() if blob.lfs} == graphs
    assert sum("/lfs-upload/" in line for line in hub.requests) == len(graphs)


def test_only_the_bundle_is_sent(hub, bundle_copy):
    (bundle_copy / "notes.txt").write_text("private")
    (bundle_copy / ".mirror.json.x1").write_text("half")
    push(bundle_copy, NAME)
    sent = set(hub.files(NAME))
    assert sent == {".gitattributes", "README.md", "mirror.json"} | set(
        Manifest.read(bundle_copy).files
    )


def test_a_new_version_removes_the_old_ones_files(hub, bundle, two_graphs):
    first = push(two_graphs, NAME)
    hub.add(NAME, {"LICENSE": b"text", "onnx/stray.onnx": b"x"})
    second = push(bundle, NAME, message="Smaller")
    assert hub.repositories[NAME].messages[-1] == "Smaller"
    assert set(hub.files(NAME)) == {".gitattributes", "README.md", "mirror.json", "LICENSE"} | set(
        Manifest.read(bundle).files
    )
    assert "onnx/model_int8.onnx" in hub.files(NAME, first.commit)
    assert first.commit != second.commit


def test_pushing_again_makes_no_commit(hub, bundle, pushed):
    assert push(bundle, NAME).commit == pushed.commit


def test_revisions(hub, bundle, two_graphs, tmp_path):
    first = push(bundle, NAME)
    branch = push(two_graphs, NAME, revision="v2")
    assert hub.repositories[NAME].branches == {"main": first.commit, "v2": branch.commit}
    for revision, commit in ((None, first), ("v2", branch), (first.commit, first)):
        out = tmp_path / f"out-{revision}"
        assert pull(NAME, out, revision=revision).commit == commit.commit
        assert len(Manifest.read(out).variants) == (2 if revision == "v2" else 1)
    assert len(Encoder.load(NAME, revision="v2").manifest.variants) == 2
    with pytest.raises(HubError, match=r"owner/encoder has no revision 'v3' on http"):
        pull(NAME, tmp_path / "x", revision="v3")
    assert not (tmp_path / "x").exists()


def test_one_variant(hub, two_graphs, tmp_path):
    push(two_graphs, NAME)
    out = tmp_path / "small"
    pull(NAME, out, variants=["int8"])
    assert sorted(p.name for p in (out / "onnx").iterdir()) == [
        "model_int8.onnx",
        "model_int8.onnx_data",
        "model_int8_mapped.onnx",
    ]
    assert "onnx/model.onnx" not in hub.downloads()
    values = json.loads((out / "mirror.json").read_text())
    assert list(values["variants"]) == ["int8"]
    assert values["added_later"] == 1
    Manifest.read(out).verify(out)
    np.testing.assert_allclose(
        Encoder.load(out).encode(TEXTS), Encoder.load(two_graphs).encode(TEXTS), atol=RUN_ERROR
    )
    with pytest.raises(BundleError, match="no variant 'fp16': this bundle has fp32, int8"):
        pull(NAME, tmp_path / "none", variants=["fp16"])


def test_files_that_differ_by_case_are_refused_where_case_does_not_count(
    hub, two_graphs, tmp_path, monkeypatch
):
    (two_graphs / "onnx" / "MODEL.onnx").write_bytes(b"another")
    path = two_graphs / "mirror.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": records(two_graphs)}))
    push(two_graphs, NAME)
    monkeypatch.setattr("mirror_rt.system.ignores_case", lambda folder: True)
    with pytest.raises(BundleError, match=r"'onnx/MODEL.onnx' and 'onnx/model.onnx' are the same"):
        pull(NAME, tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


def test_load_downloads_the_graph_it_needs(hub, two_graphs):
    push(two_graphs, NAME)
    assert Encoder.load(NAME).dimension == 32
    assert {path for path in hub.downloads() if path.startswith("onnx/")} == {
        "onnx/model.onnx",
        "onnx/model_mapped.onnx",
    }
    assert Encoder.load(NAME, variant="int8").dimension == 32
    assert "onnx/model_int8.onnx_data" in hub.downloads()


def test_offline_takes_the_cache(hub, bundle, pushed, tmp_path):
    with pytest.raises(HubError, match="nor found whole in the local cache"):
        pull(NAME, tmp_path / "a", offline=True)
    pull(NAME, tmp_path / "a")
    asked = len(hub.requests)
    pull(NAME, tmp_path / "b", offline=True)
    pull(NAME, tmp_path / "c", offline=True, revision=pushed.commit)
    assert Encoder.load(NAME, offline=True).dimension == 32
    assert len(hub.requests) == asked
    Manifest.read(tmp_path / "b").verify(tmp_path / "b")


def test_a_part_in_the_cache_is_not_taken_for_the_whole(hub, two_graphs, tmp_path):
    push(two_graphs, NAME)
    pull(NAME, tmp_path / "a", variants=["int8"])
    with pytest.raises(HubError, match="nor found whole in the local cache"):
        pull(NAME, tmp_path / "b", offline=True)


def test_private_repositories(hub, bundle, tmp_path, monkeypatch):
    push(bundle, NAME, private=True)
    assert hub.repositories[NAME].private
    pull(NAME, tmp_path / "mine")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "other"))
    with pytest.raises(HubError, match=r"nor found on http.* \(a private repository needs a token"):
        pull(NAME, tmp_path / "theirs")
    with pytest.raises(BundleError, match="a private repository needs a token"):
        Encoder.load(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="refuses the token"):
        pull(NAME, tmp_path / "theirs")


def test_private_does_not_change_a_public_repository(hub, bundle, pushed):
    with pytest.raises(ConfigError, match="exists and is public, which --private does not change"):
        push(bundle, NAME, private=True)


def test_a_gated_repository(hub, bundle, tmp_path):
    files = {p.name: p.read_bytes() for p in bundle.iterdir() if p.is_file()}
    hub.add("other/encoder", files, gated=True)
    with pytest.raises(HubError, match=r"other/encoder is gated: accept its terms at http"):
        pull("other/encoder", tmp_path / "out")


def test_a_push_without_the_right(hub, bundle, monkeypatch):
    with pytest.raises(HubError, match="the token in use may not do this with other/encoder"):
        push(bundle, "other/encoder")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="no token for the model hub: set HF_TOKEN, or log in"):
        push(bundle, NAME)
    assert hub.repositories == {}


def test_something_else_is_not_replaced(hub, bundle):
    hub.add(NAME, {"model.safetensors": b"weights", "config.json": b"{}"})
    with pytest.raises(HubError, match=r"holds something else than a bundle \(model.safetensors\)"):
        push(bundle, NAME)
    assert "model.safetensors" in hub.files(NAME)
    push(bundle, NAME, overwrite=True)
    assert "model.safetensors" not in hub.files(NAME)


def test_a_damaged_bundle_is_not_sent(hub, bundle_copy):
    (bundle_copy / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleIntegrityError, match=r"tokenizer.json has 2 bytes"):
        push(bundle_copy, NAME)
    assert hub.requests == []


def test_a_push_that_breaks_off_leaves_the_old_version(hub, bundle, two_graphs):
    old = push(two_graphs, NAME)
    before = len(hub.repositories[NAME].commits)
    hub.objects.clear()
    hub.break_off["upload"] = 1000
    (two_graphs / "README.md").write_text("---\nlicense: mit\n---\nnew")
    values = json.loads((two_graphs / "mirror.json").read_text())
    graph = two_graphs / "onnx/model.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    values["files"] = records(two_graphs)
    (two_graphs / "mirror.json").write_text(json.dumps(values))
    with pytest.raises(HubError, match=r"cannot be reached, or broke off"):
        push(two_graphs, NAME)
    assert hub.repositories[NAME].branches["main"] == old.commit
    assert len(hub.repositories[NAME].commits) == before
    del hub.break_off["upload"]
    assert push(two_graphs, NAME).commit != old.commit


def test_somebody_elses_push_is_not_undone(hub, bundle, two_graphs, monkeypatch):
    import mirror_rt.bundle.push as module

    push(bundle, NAME)
    original = module._operations

    def late(*arguments):
        hub.add(NAME, {"mirror.json": b"{}"})
        return original(*arguments)

    monkeypatch.setattr(module, "_operations", late)
    with pytest.raises(HubError, match=r"A commit has happened since.*\(status 412\)"):
        push(two_graphs, NAME)


def test_a_download_that_breaks_off_resumes(hub, bundle, pushed, tmp_path):
    hub.break_off["onnx/model.onnx"] = 1000
    out = tmp_path / "out"
    with pytest.raises(HubError, match=r"cannot be reached, or broke off .* run it again"):
        pull(NAME, out)
    assert not out.exists()
    assert visible(tmp_path) == ["hub-cache"]
    with pytest.raises(BundleError, match="broke off"):
        Encoder.load(NAME)
    with pytest.raises(HubError, match="nor found whole in the local cache"):
        pull(NAME, out, offline=True)
    hub.break_off.clear()
    whole = len(hub.downloads())
    pull(NAME, out)
    assert hub.downloads()[whole:] == ["onnx/model.onnx"]
    Manifest.read(out).verify(out)


def test_a_download_that_breaks_off_once_goes_on_where_it_stopped(hub, bundle, pushed, tmp_path):
    size = (bundle / "onnx/model.onnx").stat().st_size
    hub.break_off["onnx/model.onnx"] = size // 2

    class Once(dict):
        def get(self, path, default=None):
            return self.pop(path, default)

    hub.break_off = Once(hub.break_off)
    pull(NAME, tmp_path / "out")
    parts = [x for x in hub.requests if "lfs-download" in x and x.endswith("/onnx/model.onnx")]
    assert len(parts) == 2


@pytest.mark.parametrize("path", ["onnx/model.onnx", "tokenizer.json"])
def test_a_file_damaged_on_the_hub_is_refused(hub, pushed, tmp_path, path):
    hub.damage.add(path)
    out = tmp_path / "out"
    with pytest.raises(
        BundleIntegrityError,
        match=rf"owner/encoder at commit \w{{12}} is damaged, nothing was written: {path} has SHA",
    ):
        pull(NAME, out)
    assert visible(tmp_path) == ["hub-cache"]
    with pytest.raises(BundleIntegrityError, match=f"{path} has SHA"):
        Encoder.load(NAME)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_larger_than_its_manifest_says_is_not_downloaded(hub, bundle, tmp_path, packed):
    if packed:
        pack = make_pack(tmp_path / "pack", {"en": bundle}, "en")
    push(pack if packed else bundle, NAME)
    repository = hub.repositories[NAME]
    path = "en/onnx/model.onnx" if packed else "onnx/model.onnx"
    tree = repository.commits[repository.branches["main"]]
    tree[path] = dataclasses.replace(tree[path], content=tree[path].content + b"x")
    with pytest.raises(BundleIntegrityError, match=rf"{path} has [\d,]+ bytes, and its manifest"):
        pull(NAME, tmp_path / "out")
    if not packed:
        with pytest.raises(BundleIntegrityError, match="nothing was downloaded"):
            Encoder.load(NAME)
    assert not any(path in request for request in hub.downloads())


def test_a_file_missing_on_the_hub_is_refused(hub, bundle, tmp_path):
    push(bundle, NAME)
    del hub.repositories[NAME].commits[hub.repositories[NAME].branches["main"]]["tokenizer.json"]
    with pytest.raises(BundleIntegrityError, match=r"is incomplete: tokenizer.json is missing"):
        pull(NAME, tmp_path / "out")


def test_a_repository_without_a_bundle(hub, tmp_path):
    hub.add(NAME, {"config.json": b"{}"})
    with pytest.raises(BundleError, match="holds neither a bundle nor a pack"):
        pull(NAME, tmp_path / "out")
    with pytest.raises(BundleError, match=rf"neither a bundle .* mirror-rt export {NAME} --out"):
        Encoder.load(NAME)


def test_a_manifest_that_leads_out_of_the_folder(hub, bundle, tmp_path):
    values = json.loads((bundle / "mirror.json").read_text())
    for path in ("../evil", "/tmp/evil", "a/../../evil"):
        values["files"][path] = values["files"]["tokenizer.json"]
        hub.add(NAME, {"mirror.json": json.dumps(values).encode()})
        with pytest.raises(BundleError, match="expected a path inside the folder"):
            pull(NAME, tmp_path / "out")
        del values["files"][path]


def test_a_card_edited_on_the_hub_is_no_damage(hub, bundle, pushed, tmp_path):
    hub.add(NAME, {"README.md": b"---\nlicense: mit\n---\nMine"})
    pull(NAME, tmp_path / "out")
    assert (tmp_path / "out/README.md").read_text().endswith("Mine")
    assert Encoder.load(NAME).dimension == 32


def test_outputs_and_names(hub, bundle, pushed, tmp_path):
    pull(NAME, tmp_path / "out")
    with pytest.raises(OutputExistsError):
        pull(NAME, tmp_path / "out")
    pull(NAME, tmp_path / "out", overwrite=True)
    with pytest.raises(HubError, match="'owner/nothing' is neither a folder here nor found on"):
        pull("owner/nothing", tmp_path / "x")
    for wrong in ("encoder", "a/b/c", "./x"):
        with pytest.raises(ConfigError, match="is no name on a hub: expected owner/name"):
            pull(wrong, tmp_path / "x")
        with pytest.raises(ConfigError, match="is no name on a hub: expected owner/name"):
            push(bundle, wrong)
    with pytest.raises(HubError, match="nor a name on a hub"):
        pull("owner/a b", tmp_path / "x")


def test_what_cannot_be_pushed(hub, tmp_path, tiny_bert):
    with pytest.raises(BundleError, match="is no folder"):
        push(tmp_path / "nowhere", NAME)
    with pytest.raises(BundleError, match="is neither a bundle nor a pack"):
        push(tiny_bert, NAME)
    (tmp_path / "pack.json").write_text("{}")
    with pytest.raises(BundleError, match="says None, expected 'mirror_rt pack'"):
        push(tmp_path, NAME)


def test_a_language_pack(hub, bundle, tmp_path):
    pack = make_pack(tmp_path / "pack", {"en": bundle, "fr": bundle}, "en")
    (pack / ".de.half").mkdir()
    (pack / ".de.half" / "mirror.json").write_text("{")
    push(pack, NAME)
    assert not any(".de.half" in path for path in hub.files(NAME))
    assert b"[fr](fr)" in hub.files(NAME)["README.md"]
    out = tmp_path / "out"
    pull(NAME, out)
    assert visible(out) == ["README.md", "en", "fr", "pack.json"]
    assert Encoder.load(out / "fr").dimension == 32
    graphs, configurations = ([out / x / name for x in ("en", "fr")]
                              for name in ("onnx/model.onnx", "config.json"))  # fmt: skip
    assert graphs[0].samefile(graphs[1])
    assert not configurations[0].samefile(configurations[1])
    with pytest.raises(ConfigError, match="is a language pack: its variants come together"):
        pull(NAME, tmp_path / "x", variants=["int8"])
    hub.damage |= {"en/onnx/model.onnx", "fr/onnx/model.onnx"}
    shutil.rmtree(tmp_path / "hub-cache")
    with pytest.raises(BundleIntegrityError, match=r"onnx/model.onnx has SHA"):
        pull(NAME, tmp_path / "x")


def test_the_command_line(hub, bundle, command, tmp_path):
    """In processes of their own: HF_ENDPOINT is read when huggingface_hub is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": TOKEN,
    }
    done = command("push", bundle, NAME, "--private", env=environment)
    commit = hub.repositories[NAME].branches["main"]
    assert done.returncode == 0, done.stderr
    count = len(Manifest.read(bundle).files) + 2
    assert done.stdout == f"{hub.url}/{NAME}: {count} files, commit {commit}\n"
    assert done.stderr == f"pushing {bundle} to {NAME}\n"
    out = tmp_path / "out"
    done = command("pull", NAME, "--out", out, "--variant", "fp32", env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out}: {NAME} at commit {commit}, {count} files, ")
    assert done.stderr == f"pulling {NAME}\n"


def test_a_hub_that_cannot_be_reached(hub, bundle, tmp_path, monkeypatch, cli):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = "http://{}:{}".format(*nobody.getsockname())
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        with pytest.raises(HubError, match=f"{url} cannot be reached"):
            pull(NAME, tmp_path / "out")
        result = cli("push", bundle, NAME, "--quiet")
    one_line_error(result, code=1, contains=f"{url} cannot be reached")
