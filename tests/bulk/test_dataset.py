"""Datasets: blocks of files in shards, resumed, and proved to be complete."""

import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bulk_kills import run_with_kills
from mirror_rt import (
    ConfigError,
    DataError,
    Encoder,
    InvalidTextError,
    OutputExistsError,
)
from mirror_rt.bulk import DatasetConfig, encode_dataset, merge_manifest
from mirror_rt.bulk.parts import PartWriter
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import EncodeOptions
from rounding import RUN_ERROR

KILLS = int(os.environ.get("MIRROR_RT_KILLS", "3"))
ONE_THREAD = LoadOptions(threads=1)


@pytest.fixture
def dataset(tmp_path):
    """Seven blocks: a Parquet file of three row groups and one of two, JSON lines, CSV."""
    folder = tmp_path / "in"
    (folder / "more").mkdir(parents=True)
    for name, rows in (("a.parquet", 250), ("more/b.parquet", 160)):
        table = pyarrow.table({
            "id": [f"{name}-{i}" for i in range(rows)],
            "text": [f"river {i} " * (1 + i % 7) for i in range(rows)],
            "n": range(rows),
        })  # fmt: skip
        pyarrow.parquet.write_table(table, folder / name, row_group_size=100)
    lines = [{"id": 1, "text": "the town"}, {"id": 2, "text": None, "tags": ["x"]},
             {"id": 3, "text": "2024-01-01"}]  # fmt: skip
    (folder / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "d.csv").write_text('id,text\n007,"the ""old"", town"\n008,the river\n')
    (folder / "_SUCCESS").touch()
    return folder


def config(bundle, source, output, **options):
    return DatasetConfig(str(bundle), str(source), str(output), load=ONE_THREAD,
                         options=EncodeOptions(errors="nan"), **options)  # fmt: skip


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name != "_manifest.json"
    }


def test_blocks_keep_their_rows_and_get_vectors(bundle, dataset, tmp_path):
    report = encode_dataset(config(bundle, dataset, tmp_path / "out"))
    assert (report.blocks, report.rows, report.invalid, report.resumed) == (7, 415, 1, 0)
    encoder = Encoder.load(bundle)
    for name in ("a.parquet", "more/b.parquet"):
        source = pyarrow.parquet.read_table(dataset / name)
        groups = -(-len(source) // 100)
        parts = pyarrow.concat_tables(
            pyarrow.parquet.read_table(tmp_path / "out" / f"{name}-{group:05d}.parquet")
            for group in range(groups)
        )
        assert parts.drop_columns("embedding").equals(source)
        vectors = np.array(parts["embedding"].to_pylist(), np.float32)
        np.testing.assert_allclose(
            vectors, encoder.encode(source["text"].to_pylist()), atol=RUN_ERROR
        )
    lines = pyarrow.parquet.read_table(tmp_path / "out/c.jsonl-00000.parquet").to_pylist()
    assert [line["embedding"] is None for line in lines] == [False, True, False]
    assert [(line["id"], line["tags"]) for line in lines] == [(1, None), (2, ["x"]), (3, None)]
    cells = pyarrow.parquet.read_table(tmp_path / "out/d.csv-00000.parquet")
    assert cells["id"].to_pylist() == ["007", "008"]
    manifest = json.loads((tmp_path / "out/_manifest.json").read_text())
    assert (manifest["rows"], manifest["invalid"], len(manifest["parts"])) == (415, 1, 7)
    assert len(pyarrow.parquet.read_table(tmp_path / "out", columns=["embedding"])) == 415


def test_shards_make_the_files_of_one_run_and_prove_it(bundle, dataset, tmp_path):
    encode_dataset(config(bundle, dataset, tmp_path / "whole"))
    out = tmp_path / "out"
    for shard in ("2/3", "0/3"):
        encode_dataset(config(bundle, dataset, out, shard=shard))
    with pytest.raises(DataError, match=r"lacks 2 of 7 parts.*a.parquet-00001.parquet, d"):
        merge_manifest(config(bundle, dataset, out))
    assert not (out / "_manifest.json").exists()
    encode_dataset(config(bundle, dataset, out, shard="1/3"))
    merged = merge_manifest(config(bundle, dataset, out))
    assert merged == json.loads((tmp_path / "whole/_manifest.json").read_text())
    assert contents(out) == contents(tmp_path / "whole")


def test_the_proof_finds_what_is_wrong(bundle, tiny_bundle, dataset, tmp_path):
    out = tmp_path / "out"
    encode_dataset(config(bundle, dataset, out))
    with pytest.raises(DataError, match="bundle was"):
        merge_manifest(config(tiny_bundle("roberta"), dataset, out))
    part = out / "a.parquet-00001.parquet"
    good = part.read_bytes()
    part.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    with pytest.raises(DataError, match="is damaged"):
        merge_manifest(config(bundle, dataset, out))
    part.write_bytes(good[:-100])
    with pytest.raises(DataError, match=r"lacks 1 of 7 parts.*a.parquet-00001"):
        merge_manifest(config(bundle, dataset, out))
    encode_dataset(config(bundle, dataset, out, resume=True))
    assert part.read_bytes() == good
    (dataset / "d.csv").unlink()
    with pytest.raises(DataError, match=r"1 parts of no block.*d\.csv-00000"):
        merge_manifest(config(bundle, dataset, out))


def test_what_changed_is_encoded_again_and_nothing_else(bundle, dataset, tmp_path):
    out = tmp_path / "out"
    encode_dataset(config(bundle, dataset, out))
    times = {name: (out / name).stat().st_mtime_ns for name in contents(out)}
    (dataset / "d.csv").write_text("id,text\n009,the sea\n")
    (dataset / "e.txt").write_text("one line\nanother\n")
    report = encode_dataset(config(bundle, dataset, out, resume=True))
    assert (report.blocks, report.rows, report.resumed) == (8, 416, 413)
    changed = {name for name in contents(out) if (out / name).stat().st_mtime_ns != times.get(name)}
    assert changed == {"d.csv-00000.parquet", "e.txt-00000.parquet"}


@pytest.mark.full
@pytest.mark.parametrize("shards", [1, 2])
def test_kills_leave_the_files_of_one_run(bundle, dataset, tmp_path, shards):
    encode_dataset(config(bundle, dataset, tmp_path / "whole"))
    out, killed = tmp_path / "out", []
    for shard in range(shards):
        arguments = ["encode", bundle, "--input", dataset, "--output", out, "--errors", "nan",
                     "--threads", 1, "--shard", f"{shard}/{shards}"]  # fmt: skip
        done, parts = run_with_kills(
            arguments, KILLS, folder=out, seed=shard, pattern="*-?????.parquet"
        )
        assert done.returncode == 0, done.stderr
        killed += parts
    assert killed
    assert contents(out) == contents(tmp_path / "whole")
    proved = merge_manifest(config(bundle, dataset, out))
    assert proved == json.loads((tmp_path / "whole/_manifest.json").read_text())


def test_an_interrupted_job_says_what_is_saved(bundle, dataset, tmp_path, monkeypatch):
    write, allowed = PartWriter.write, iter(range(2))

    def write_two(*arguments, **options):
        if next(allowed, None) is None:
            raise KeyboardInterrupt
        return write(*arguments, **options)

    monkeypatch.setattr(PartWriter, "write", write_two)
    with pytest.raises(KeyboardInterrupt, match=r"2 parts are saved in .*: go on with --resume"):
        encode_dataset(config(bundle, dataset, tmp_path / "out"))
    monkeypatch.undo()
    report = encode_dataset(config(bundle, dataset, tmp_path / "out", resume=True))
    assert (report.blocks, report.resumed) == (7, 200)


def test_nothing_stays_of_files_that_a_kill_cut_off(bundle, dataset, tmp_path):
    encode_dataset(config(bundle, dataset / "d.csv", tmp_path / "out"))
    for name in (".d.csv-00000.parquet.x", "._manifest.json.x", "._job.json.x"):
        (tmp_path / "out" / name).touch()
    encode_dataset(config(bundle, dataset / "d.csv", tmp_path / "out", resume=True))
    assert set(contents(tmp_path / "out")) == {"_job.json", "d.csv-00000.parquet"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shard": "3/3"}, ConfigError, "I in 0 .. N-1"),
        ({"shard": "0/2", "overwrite": True}, ConfigError, "parts of other shards"),
        ({"columns": ("nothing",)}, DataError, "no column 'nothing'"),
        ({"text_field": "body"}, DataError, "no column 'body'"),
        ({"text_field": "n"}, DataError, "of type int64, expected string"),
    ],
)
def test_refused(bundle, dataset, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        encode_dataset(config(bundle, dataset, tmp_path / "out", **options))
    assert not list(tmp_path.glob("out/*.parquet"))


def test_other_jobs_and_folders_are_refused(bundle, dataset, tmp_path):
    out = tmp_path / "out"
    encode_dataset(config(bundle, dataset, out))
    with pytest.raises(OutputExistsError, match="7 of the 7 parts: go on with --resume"):
        encode_dataset(config(bundle, dataset, out))
    with pytest.raises(DataError, match="columns was None, now"):
        encode_dataset(config(bundle, dataset, out, columns=("id",), resume=True))
    encode_dataset(config(bundle, dataset / "d.csv", out, columns=("id",), overwrite=True))
    assert set(contents(out)) == {"_job.json", "d.csv-00000.parquet"}
    assert pyarrow.parquet.read_schema(out / "d.csv-00000.parquet").names == ["id", "embedding"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious").touch()
    with pytest.raises(OutputExistsError, match="not the folder of a job"):
        encode_dataset(config(bundle, dataset, tmp_path / "mine", overwrite=True))


def test_a_text_that_cannot_be_encoded_is_named(bundle, dataset, tmp_path):
    strict = DatasetConfig(str(bundle), str(dataset / "c.jsonl"), str(tmp_path / "out"))
    with pytest.raises(InvalidTextError, match=r"c\.jsonl.*text 2: .*--errors nan"):
        encode_dataset(strict)


def test_any_file_system(bundle, dataset, tmp_path):
    """In memory by fsspec, which stands for an object store; the output lies below the input."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(dataset), "/data", recursive=True)
    source = "memory://data/**/*.parquet"
    report = encode_dataset(config(bundle, source, "memory://data/out"))
    again = encode_dataset(config(bundle, source, "memory://data/out", resume=True))
    assert (report.blocks, report.resumed, again.resumed) == (5, 0, 410)
    assert len(memory.glob("/data/out/**/*.parquet")) == 5
    assert merge_manifest(config(bundle, source, "memory://data/out"))["rows"] == 410


def test_command(cli, bundle, dataset, tmp_path):
    line = ["encode", bundle, "--input", f"{dataset}/*.parquet", "--output", tmp_path / "out"]
    for i in range(2):
        result = cli(*line, "--shard", f"{i}/2", "--columns", "id", "--resume")
        assert result.code == 0, result.err
    assert "100 vectors in 1 parts" in result.err
    result = cli(*line, "--merge-manifest")
    assert (result.code, "3 parts of one model, complete; 250 rows" in result.err) == (0, True)
    for wrong in (["--id-field", "id"], ["--processes", "2"]):
        result = cli(*line, *wrong)
        assert (result.code, f"{wrong[0]} is for one file" in result.err) == (2, True)


def test_a_dataset_counts_rows_without_a_vector_whatever_takes_its_place(bundle, tmp_path):
    (tmp_path / "in").mkdir()
    rows = '{"text": "the river"}\n{"text": " "}\n{"id": 1}\n'
    (tmp_path / "in" / "a.jsonl").write_text(rows)
    paths = (str(bundle), str(tmp_path / "in"), str(tmp_path / "out"))
    report = encode_dataset(DatasetConfig(*paths, options={"errors": "zero"}))
    places = ["a.jsonl-00000.parquet:2", "a.jsonl-00000.parquet:3"]
    counts = {"rows": 3, "invalid": 2, "empty": 2, "cut": 0,
              "first": {"invalid": places, "empty": places}}  # fmt: skip
    assert report.counts.to_dict() == counts
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert counts.items() <= manifest.items()
    with pytest.raises(DataError, match="no object has the field 'body'"):
        encode_dataset(DatasetConfig(*paths[:2], str(tmp_path / "other"), "body"))
