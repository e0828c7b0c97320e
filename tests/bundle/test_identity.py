"""One identity by content for whatever decides the vectors of a model."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mirror_rt import BundleError, Encoder
from mirror_rt.bundle.identity import deciding_files, digest_of, graph_digest
from mirror_rt.io.file_states import content_sha256
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models import reload
from mirror_rt.server.models.reload import Reloader
from mirror_rt.server.models.served_models import Source
from mirror_rt.server.monitoring.metrics import Metrics
from onnx_folders import DESCRIPTIONS, MODULES, publish

WEIGHTS = "onnx/weights.bin"
TEXTS = ["a river", "the old town"]


@pytest.fixture
def published(bundle, tmp_path):
    """Plain ONNX files, with the weights in a file of a name of its own beside the graph."""
    return publish(bundle, tmp_path / "published", weights="weights.bin")


def change(path):
    """Give a file another content of the same size and time, as another layer of an image has."""
    before, content = path.stat(), bytearray(path.read_bytes())
    if path.suffix == ".json":
        content[content.rindex(b"}") - 1 : content.rindex(b"}")] = b"\t"
    else:
        content[:] = (np.frombuffer(content, "<f4") * np.float32(-1.5)).tobytes()
    other = path.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_every_file_that_decides_a_vector_counts(published):
    for name in (*DESCRIPTIONS, *MODULES, WEIGHTS):
        before = digest_of(published)
        change(published / name)
        assert digest_of(published) != before, name
    before = digest_of(published)
    (published / "README.md").write_text("a card")
    assert digest_of(published) == before


def test_the_cache_has_no_vectors_of_other_weights(published, tmp_path):
    with Encoder.load(published, cache=tmp_path / "cache") as encoder:
        before = encoder.encode(TEXTS)
    change(published / WEIGHTS)
    with Encoder.load(published) as encoder:
        expected = encoder.encode(TEXTS)
    with Encoder.load(published, cache=tmp_path / "cache") as encoder:
        found = encoder.encode(TEXTS)
    assert abs(before - expected).max() > 1e-3
    np.testing.assert_array_equal(found, expected)


def test_a_job_is_not_resumed_with_other_weights(published, tmp_path, cli):
    out, rows = tmp_path / "out.npy", tmp_path / "rows.txt"
    rows.write_text("".join(f"text {n}\n" for n in range(20)) + " \n")
    job = ("encode", published, "--input", rows, "--output", out, "--window", 5)
    assert cli(*job).code != 0  # the last row has no text, and the others are saved
    change(published / WEIGHTS)
    done = cli(*job, "--errors", "nan", "--resume")
    assert done.code != 0
    assert "is of another job: bundle was" in done.err
    assert not out.exists()


def test_a_reload_notices_other_weights(published, monkeypatch):
    source, replaced = Source(published, ServerConfig()), threading.Event()
    models = SimpleNamespace(digest=source.digest(published), files={}, source=source, by_name=[])
    monkeypatch.setattr(reload, "load_folder", lambda *_: SimpleNamespace(by_name=["new"]))
    change(published / WEIGHTS)
    reloader = Reloader([models], None, lambda *_: replaced.set(), Metrics())
    reloader.ask()
    assert replaced.wait(60)
    reloader.close()


def test_without_hashes_that_are_compared_the_contents_count(bundle_copy):
    by_manifest, by_content = digest_of(bundle_copy), digest_of(bundle_copy, verified=False)
    (bundle_copy / "onnx/model.onnx").write_bytes(b"another graph")
    assert digest_of(bundle_copy) == by_manifest
    assert digest_of(bundle_copy, verified=False) != by_content


def test_the_files_that_count(published, bundle):
    names = [path.relative_to(published).as_posix() for path in deciding_files(published)]
    assert names == sorted([*DESCRIPTIONS, *MODULES, "onnx/model.onnx", WEIGHTS])
    assert bundle / "mirror.json" in deciding_files(bundle)
    before = graph_digest(published / "onnx/model.onnx")
    change(published / WEIGHTS)
    assert graph_digest(published / "onnx/model.onnx") != before


def test_no_model_has_no_identity(tmp_path):
    with pytest.raises(BundleError, match=r"has no mirror\.json"):
        digest_of(tmp_path)


def test_a_hash_is_not_taken_from_before_a_change(tmp_path):
    """Not even of a file that is old and is written to in place, at a size and time of before."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    os.utime(path, (0, 0))
    seen = {content_sha256(path)}
    for content in (b"two", b"six"):
        path.write_bytes(content)
        os.utime(path, (0, 0))
        seen.add(content_sha256(path))
    assert len(seen) == 3
