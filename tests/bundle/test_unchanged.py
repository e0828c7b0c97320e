"""A folder that is exchanged at any moment of a load is the old one or the new one, never both."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from mirror_rt import BundleError, BundleIntegrityError, Encoder, LanguagePack, Predictor, Reranker
from mirror_rt.bulk.options import DatasetConfig
from mirror_rt.bulk.parts import PartWriter
from mirror_rt.bulk.plan import dataset_plan
from mirror_rt.bundle.manifest import Layout, Manifest, record_files
from mirror_rt.bundle.score_layers import ScoreLayers
from mirror_rt.heads.task_heads import Heads, TaskHead
from mirror_rt.inference.session import GraphSession
from mirror_rt.io.atomic import write_json
from mirror_rt.io.file_states import load_unchanged
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.sources import load_models
from server_process import make_pack

TEXTS = ["a river", "the old town by the river"]
PAIRS = [("a river", "the old town"), ("the town", "a long river")]


def sealed(folder):
    """Write the hashes of the files of a folder into its manifest."""
    values = Manifest.read(folder, None).to_dict() | {"files": {}}
    values["files"] = {
        name: {"bytes": one.bytes, "sha256": one.sha256}
        for name, one in record_files(folder).items()
    }
    if table := values["native"]:
        table["sha256"] = values["files"][table["file"]]["sha256"]
    write_json(folder / Layout.manifest, values)


def other_model(source, out):
    """Copy a bundle, with other weights, another head, and the words in another order."""
    shutil.copytree(source, out)
    graph = (out / "onnx/model.onnx").read_bytes()
    for tensor in onnx.load_from_string(graph).graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            others = onnx.numpy_helper.to_array(tensor) * np.float32(-1.5)
            graph = graph.replace(tensor.raw_data, others.tobytes())  # each stays at its place
    (out / "onnx/model.onnx").write_bytes(graph)
    (out / "onnx/model_mapped.onnx").unlink(missing_ok=True)
    tokenizer = (out / "tokenizer.json").read_text(encoding="utf-8")
    swapped = tokenizer.replace('"river"', '"\0"').replace('"town"', '"river"')
    (out / "tokenizer.json").write_text(swapped.replace('"\0"', '"town"'), encoding="utf-8")
    if (scores := out / ScoreLayers.file).is_file():
        np.save(scores, np.load(scores) * np.float32(2))
    sealed(out)
    return out


class Exchange:
    """Exchanges a folder for another one whenever this process opens a file in it."""

    def __init__(self, folder, other, at, how):
        self.folder, self.other, self.at, self.how = folder, other, at, how
        self.opened, self.active = 0, False

    def __enter__(self):
        self.active = True
        return self

    def __exit__(self, *_):
        self.active = False

    def __call__(self, path):
        if not self.active or not str(path).startswith(str(self.folder)):
            return
        self.opened += 1
        if self.opened in self.at:
            self.active = False
            self.how(self.folder, self.other)
            self.active = True


def by_renaming(folder, other):
    aside = folder.with_name("aside")
    folder.rename(aside)
    other.rename(folder)
    aside.rename(other)


def by_a_link(folder, other):
    new = folder.with_name("new")
    target = folder.readlink()
    new.symlink_to(other.readlink())
    new.replace(folder)
    new.symlink_to(target)
    new.replace(other)


HOOKED: list[Exchange] = []


def hook(event, arguments):
    if event == "open" and HOOKED:
        for one in HOOKED:
            one(arguments[0])


sys.addaudithook(hook)  # which cannot be removed


@pytest.fixture
def exchanging(monkeypatch):
    """Hook an exchange into all that opens files, this package's own sessions included."""
    original = GraphSession._open

    def opened(session, config):
        hook("open", [session.graph])
        return original(session, config)

    monkeypatch.setattr(GraphSession, "_open", opened)
    yield lambda *given: HOOKED.append(Exchange(*given)) or HOOKED[-1]
    HOOKED.clear()


def check(exchanging, tmp_path, source, other, load, links):
    """Load with an exchange at each moment, and with one there and back; compare with the two."""
    folder, second = tmp_path / "folder", tmp_path / "second"
    if links:
        shutil.copytree(source, tmp_path / "a")
        shutil.copytree(other, tmp_path / "b")
        folder.symlink_to("a")
        second.symlink_to("b")
    else:
        shutil.copytree(source, folder)
        shutil.copytree(other, second)
    with exchanging(folder, second, (), None) as seen:
        expected = [load(folder)]
    expected.append(load(second))
    assert not np.allclose(*expected)
    assert seen.opened > 2
    for first in range(1, seen.opened + 1):
        for at in ({first}, {first, first + 1}):
            with exchanging(folder, second, at, by_a_link if links else by_renaming):
                found = load(folder)
            assert any(np.array_equal(found, one) for one in expected), at


@pytest.mark.full
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize(
    "options", [{"providers": "cpu"}, {"providers": "native"}, {"verify": False}]
)
def test_an_encoder(bundle, tmp_path, exchanging, options, links):
    def load(folder):
        with Encoder.load(folder, **options) as encoder:
            return encoder.encode(TEXTS)

    check(exchanging, tmp_path, bundle, other_model(bundle, tmp_path / "other"), load, links)


def test_a_tokenizer_of_another_bundle(bundle, tmp_path, exchanging):
    """The shortest form of it: the exchange comes between the graph and the tokenizer."""
    folder, other = tmp_path / "folder", other_model(bundle, tmp_path / "other")
    shutil.copytree(bundle, folder)
    expected = [Encoder.load(one).encode(TEXTS) for one in (folder, other)]
    with exchanging(folder, other, (), None) as seen:
        Encoder.load(folder)
    for at in range(1, seen.opened + 1):
        with exchanging(folder, other, {at}, by_renaming):
            found = Encoder.load(folder).encode(TEXTS)
        assert any(np.array_equal(found, one) for one in expected)


@pytest.mark.full
def test_a_reranker(tiny_reranker, tmp_path, exchanging):
    def load(folder):
        with Reranker.load(folder) as reranker:
            return reranker.predict(PAIRS)

    source = tiny_reranker("bert")
    check(exchanging, tmp_path, source, other_model(source, tmp_path / "other"), load, False)


@pytest.mark.full
def test_heads(bundle, tmp_path, exchanging):
    folders = []
    for name, source in (("one", bundle), ("two", other_model(bundle, tmp_path / "other"))):
        folders.append(shutil.copytree(source, tmp_path / name))
        weight = np.full((2, 32), len(folders), np.float32) * [[1], [-1]]
        head = TaskHead("h", "classifier", weight.astype(np.float32), np.zeros(2, np.float32),
                        ("a", "b"))  # fmt: skip
        Heads(32, "mean", {"h": head}).write(folders[-1])
        sealed(folders[-1])

    def load(folder):
        return Predictor.load(folder).predict("h", TEXTS).scores

    check(exchanging, tmp_path, *folders, load, False)


@pytest.mark.full
def test_a_static_encoder(static_bundle, tmp_path, exchanging):
    from mirror_rt.io.tensors import read_tensors, write_tensors

    other = shutil.copytree(static_bundle, tmp_path / "other")
    table = other / "model.safetensors"
    write_tensors(table, {name: one * -2 + 1 for name, one in read_tensors(table).items()})
    tokenizer = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(tokenizer.replace('"river"', '"rover"'), encoding="utf-8")
    sealed(other)
    check(exchanging, tmp_path, static_bundle, other,
          lambda folder: Encoder.load(folder).encode(TEXTS), False)  # fmt: skip


def pack_of(folder, bundle):
    return make_pack(folder, {"en": bundle, "de": bundle}, "en")


def test_a_pack_that_is_exchanged_is_not_mixed(bundle, tmp_path):
    """One bundle was loaded before, and the other would be of the new pack."""
    folder = pack_of(tmp_path / "pack", bundle)
    other = pack_of(tmp_path / "next", other_model(bundle, tmp_path / "other"))
    for verify in (True, False):
        with LanguagePack.load(folder, verify=verify) as pack:
            pack.encode(TEXTS, "en")
            by_renaming(folder, other)
            with pytest.raises(BundleIntegrityError, match=r"is not the one that pack\.json names"):
                pack.encode(TEXTS, "de")


def test_a_bundle_of_a_pack_that_changed_is_verified_again(bundle, tmp_path):
    """After it had to leave the memory, too."""
    folder = pack_of(tmp_path / "pack", bundle)
    with LanguagePack.load(folder) as pack:
        before = pack.encode(TEXTS, "en")
        pack._cache.drop(["en"])
        pack._cache.add({"en": 1})
        np.testing.assert_array_equal(pack.encode(TEXTS, "en"), before)
        pack._cache.drop(["en"])
        pack._cache.add({"en": 1})
        graph = folder / "en/onnx/model.onnx"
        graph.write_bytes(graph.read_bytes()[:-1] + b"x")
        with pytest.raises(BundleIntegrityError, match="SHA-256"):
            pack.encode(TEXTS, "en")


def test_a_served_pack_is_not_mixed(bundle, tmp_path, monkeypatch):
    folder = pack_of(tmp_path / "pack", bundle)
    other = pack_of(tmp_path / "next", other_model(bundle, tmp_path / "other"))
    expected, load, seen = Encoder.load(other / "de").encode(TEXTS), Encoder.load.__func__, []

    def exchange_before_the_second(cls, path, **options):
        seen.append(path)
        if len(seen) == 2:
            by_renaming(folder, other)
        return load(cls, path, **options)

    monkeypatch.setattr(Encoder, "load", classmethod(exchange_before_the_second))
    models = load_models(folder, ServerConfig(load=ServerConfig().load))
    for model in models.by_name.values():
        np.testing.assert_array_equal(model.encoder.encode(TEXTS), expected)


def test_a_job_has_one_model_in_all_its_processes(bundle, tmp_path, monkeypatch, cli):
    folder, other = tmp_path / "folder", other_model(bundle, tmp_path / "other")
    shutil.copytree(bundle, folder)
    rows, out = tmp_path / "rows.txt", tmp_path / "out.npy"
    rows.write_text("a river\nthe town\n")
    from mirror_rt.bulk import run

    plan = run.file_plan

    def exchange_after(*given):
        try:
            return plan(*given)
        finally:
            by_renaming(folder, other)

    monkeypatch.setattr(run, "file_plan", exchange_after)
    done = cli("encode", folder, "--input", rows, "--output", out)
    assert "was replaced since the job was begun" in done.err
    assert not out.exists()


def test_a_part_is_made_by_the_model_of_its_job(bundle, tmp_path):
    folder, other = tmp_path / "folder", other_model(bundle, tmp_path / "other")
    shutil.copytree(bundle, folder)
    config = DatasetConfig(model=str(folder), input="in", output=str(tmp_path / "out"))
    job = dataset_plan(config).digest
    PartWriter.open(config, job)
    by_renaming(folder, other)
    with pytest.raises(Exception, match="would make other vectors than the job's"):
        PartWriter.open(config, job)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_load_another_model(bundle, tmp_path):
    folder, other = tmp_path / "folder", other_model(bundle, tmp_path / "other")
    shutil.copytree(bundle, folder)
    with Encoder.load(folder, providers="cpu") as encoder:
        by_renaming(folder, other)
        if not (child := os.fork()):
            try:
                encoder.encode(TEXTS)
            except BundleError as error:
                os._exit(0 if "was replaced before this process was forked" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_folder_that_never_rests_is_named(tmp_path):
    def load():
        (tmp_path / "file").write_text("x" * len(made))
        made.append(None)

    made: list[None] = []
    with pytest.raises(BundleError, match=f"{tmp_path} was changed or replaced 32 times"):
        load_unchanged(tmp_path, load)
    assert len(made) == 32


def test_an_error_of_a_folder_that_rests_is_said_at_once(tmp_path):
    calls = []

    def load():
        calls.append(Path.cwd())
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        load_unchanged(tmp_path, load)
    assert len(calls) == 1
