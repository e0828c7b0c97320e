"""Ray: batches in actors that load once, and `mirror-rt encode --engine ray`, also with S3."""

import contextlib
import os
import shlex
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ray")

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import ray
from moto.server import ThreadedMotoServer

from mirror_rt.adapters.ray import MirrorEmbedder, assigned_resources
from mirror_rt.bulk import DatasetConfig, encode_dataset, merge_manifest
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.providers import without_cards
from mirror_rt.pipeline.options import EncodeOptions
from rounding import ANY_BATCH


@pytest.fixture(scope="module", autouse=True)
def s3():
    """A server of S3's protocol at 127.0.0.1, and the variables by which all find it."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory, s3):
    """Of two CPUs; its workers import from the driver's folder, which must not be the sources."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with contextlib.chdir(tmp_path_factory.mktemp("empty")):
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


class Reporting(MirrorEmbedder):
    """Adds how the encoder was loaded."""

    def __call__(self, batch):
        made = super().__call__(batch)
        said = (
            f"{os.getpid()} {assigned_resources()['threads']} {assigned_resources()['providers']}"
        )
        return made.append_column("said", pa.array([said] * len(made), pa.string()))


def test_batches_in_actors(model, documents, encoder):
    texts = [*documents, None, " "] * 20
    rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
    made = (
        ray.data.from_items(rows, override_num_blocks=8)
        .map_batches(Reporting, fn_constructor_args=[str(model)], batch_format="pyarrow",
                     batch_size=20, num_cpus=2, compute=ray.data.ActorPoolStrategy(size=1))
        .take_all()
    )  # fmt: skip
    made.sort(key=lambda row: row["id"])
    assert [row["text"] for row in made] == texts
    vectors = [row["embedding"] for row in made]
    assert [vector is None for vector in vectors] == ([False] * 6 + [True] * 2) * 20
    of_texts = np.array([vector for vector in vectors if vector is not None])
    np.testing.assert_allclose(
        of_texts, np.tile(encoder.encode(documents), (20, 1)), atol=ANY_BATCH
    )
    (said,) = {row["said"] for row in made}  # one actor
    assert said.split()[1:] == ["2", without_cards()]


def test_wrong_batches_are_refused(model):
    embedder = MirrorEmbedder(str(model))
    with pytest.raises(ConfigError, match="batch_format='pyarrow'"):
        embedder({"text": np.array(["a"])})
    with pytest.raises(DataError, match="no column 'text'"):
        embedder(pa.table({"body": ["a"]}))
    empty = embedder(pa.table({"text": pa.array([], pa.string())}))
    assert (len(empty), empty.column_names) == (0, ["text", "embedding"])


@pytest.mark.parametrize("precision", ["float16", "int8", "ubinary"])
def test_bad_rows_are_null_in_every_precision(model, documents, encoder, precision):
    embedder = MirrorEmbedder(str(model), encode_kwargs={"precision": precision})
    made = embedder(pa.table({"text": [*documents, None]}))["embedding"].to_pylist()
    assert made.pop() is None
    expected = encoder.encode(documents, precision=precision)
    np.testing.assert_array_equal(np.array(made, expected.dtype), expected)


@pytest.fixture
def dataset(tmp_path, documents):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        texts = [f"{text} {i}" for i in range(30) for text in documents]
        table = pa.table({"id": [f"{name}{i}" for i in range(180)], "text": texts})
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet", row_group_size=50)
    return tmp_path / "in"


def parts(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


def config(model, dataset, output, **options):
    return DatasetConfig(str(model), str(dataset), str(output), **options)


def test_a_dataset_has_the_files_of_one_machine(model, dataset, tmp_path):
    encode_dataset(config(model, dataset, tmp_path / "one", load=LoadOptions(threads=1)))
    made = encode_dataset(config(model, dataset, tmp_path / "ray", engine="ray", workers=2))
    assert (made.blocks, made.rows, made.resumed) == (8, 360, 0)
    assert parts(tmp_path / "ray") == parts(tmp_path / "one")
    (tmp_path / "ray" / "a.parquet-00002.parquet").unlink()
    again = encode_dataset(config(model, dataset, tmp_path / "ray", engine="ray", resume=True))
    assert (again.rows, again.resumed) == (360, 310)
    assert parts(tmp_path / "ray") == parts(tmp_path / "one")
    for name in ("_job.json", "_manifest.json"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


@pytest.fixture
def bucket(dataset, s3):
    """The dataset in a bucket, and an empty bucket."""
    # The constructor of S3FileSystem does not look at AWS_ENDPOINT_URL; addresses do.
    store, _ = pa.fs.FileSystem.from_uri("s3://texts?allow_bucket_creation=true")
    for name in ("texts", "vectors"):
        store.create_dir(name)
    pa.fs.copy_files(str(dataset), "texts/2026", destination_filesystem=store)
    yield store
    for name in ("texts", "vectors"):
        store.delete_dir_contents(name)


def table(folder, filesystem=None):
    return pq.read_table(folder, filesystem=filesystem)


@pytest.mark.parametrize("engine", ["ray", None])
def test_a_dataset_in_an_object_store(model, dataset, bucket, tmp_path, engine):
    encode_dataset(config(model, dataset, tmp_path / "one", load=LoadOptions(threads=1)))
    job = config(model, "s3://texts/2026/*.parquet", "s3://vectors/2026", engine=engine,
                 resume=True, load=LoadOptions(threads=1))  # fmt: skip
    bucket.delete_file("texts/2026/b.parquet")
    made = encode_dataset(job)
    assert (made.blocks, made.rows) == (4, 180)
    late = "texts/2026/b.parquet"
    pa.fs.copy_files(str(dataset / "b.parquet"), late, destination_filesystem=bucket)
    bucket.delete_file("vectors/2026/a.parquet-00002.parquet")
    made = encode_dataset(job)
    assert (made.blocks, made.rows, made.resumed) == (8, 360, 130)
    assert merge_manifest(job)["rows"] == 360
    assert table("vectors/2026", bucket).equals(table(tmp_path / "one"))
    for shard in ("0/2", "1/2"):
        encode_dataset(replace(job, output="s3://vectors/shards", engine=None, shard=shard))
    assert merge_manifest(replace(job, output="s3://vectors/shards"))["blocks"] == 8


def test_what_is_wrong_with_an_address_is_said(model, bucket, tmp_path):
    for where, said in (("s3://nobucket/x", "nobucket"), ("s3://texts/none", "s3://texts/none")):
        with pytest.raises((DataError, OSError), match=said):
            encode_dataset(config(model, where, tmp_path / "out"))


def test_errors_of_workers_are_those_of_one_machine(model, dataset, tmp_path):
    (dataset / "c.jsonl").write_text('{"text": "a"}\n{"text": ""}\n')
    with pytest.raises(DataError, match=r"c\.jsonl.*text 2: the string is empty"):
        encode_dataset(config(model, dataset, tmp_path / "ray", engine="ray"))
    options = EncodeOptions(errors="nan")
    made = encode_dataset(config(model, dataset, tmp_path / "ray", engine="ray", options=options,
                                 resume=True))  # fmt: skip
    assert (made.rows, made.invalid) == (362, 1)


def test_command(model, dataset, tmp_path):
    line = [sys.executable, "-P", "-m", "mirror_rt.cli", "encode", model, "--input",
            dataset / "*.parquet", "--output", tmp_path / "out", "--engine", "ray",
            "--workers", "1"]  # fmt: skip
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "360 vectors in 8 parts" in done.stderr


def test_the_command_of_the_guide(shown, model, bucket):
    line = shown("--engine ray", {
        "$ mirror-rt": f"{shlex.quote(sys.executable)} -P -m mirror_rt.cli",
        "bundle": shlex.quote(str(model)),
        "auto": ray.get_runtime_context().gcs_address, "--worker-cpus 4": "--worker-cpus 2",
    })  # fmt: skip
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(table("vectors/2026", bucket)) == 360


def test_the_pipeline_of_the_guide(shown, model, bucket):
    there = {"all-MiniLM-L6-v2": model, "num_cpus=4": "num_cpus=1", "size=16": "size=1"}
    exec(shown("map_batches", there), {})
    made = table("vectors/2026", bucket)
    assert (len(made), made.column_names) == (360, ["id", "text", "embedding"])
    assert made["embedding"].null_count == 0
