"""Bulk encoding: formats with ids, kills, what is refused."""

import csv
import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest

from bulk_kills import count_parts, run_with_kills
from command_errors import one_line_error
from mirror_rt import (
    DataError,
    Encoder,
    InvalidTextError,
    OutputExistsError,
    ProcessGroupError,
)
from mirror_rt.bulk import BulkConfig, encode_file
from mirror_rt.bulk.job import JobFolder
from mirror_rt.bulk.plan import find_bundle, window_characters
from mirror_rt.bulk.reading import count_records
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.kept_work import Identity
from rounding import NORM_ERROR, RUN_ERROR
from tiers import tiers

KILLS = int(os.environ.get("MIRROR_RT_KILLS", "3"))
IDS = ["b,1", "a\n2", 'c"3', "д4"]
TEXTS = ["the river", 'a "quoted", text\nof two lines', "人生", "old town"]


@pytest.fixture(scope="module")
def encoder(bundle):
    return Encoder.load(bundle)


def write(path, rows):
    """Rows of {"id", "body"} in the format of the suffix."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["id", "n", "body"])
            writer.writeheader()
            writer.writerows(row | {"n": 0} for row in rows)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    return path


def read(path):
    """(ids, vectors with NaN for null) of an output."""
    if path.suffix == ".npy":
        lines = path.with_suffix(".ids.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], np.load(path)
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        import pyarrow
        import pyarrow.feather
        import pyarrow.parquet

        is_parquet = path.suffix == ".parquet"
        reader = pyarrow.parquet.read_table if is_parquet else pyarrow.feather.read_table
        table = reader(path)
        assert pyarrow.types.is_fixed_size_list(table.schema.field("embedding").type)
        rows = table.to_pylist()
    vectors = [
        np.full(32, np.nan) if row["embedding"] is None else row["embedding"] for row in rows
    ]
    return [row["id"] for row in rows], np.array(vectors, dtype=np.float32)


def config(bundle, source, output, **options):
    fields = {"text_field": "body", "id_field": "id"} if source.suffix != ".txt" else {}
    return BulkConfig(str(bundle), str(source), str(output), **(fields | options))


@pytest.mark.parametrize("target", ["v.npy", "v.jsonl", "v.parquet", "v.arrow"])
@pytest.mark.parametrize("source", ["in.jsonl", "in.csv", "in.parquet"])
def test_formats(bundle, encoder, tmp_path, source, target):
    rows = [{"id": name, "body": text} for name, text in zip(IDS, TEXTS, strict=True)]
    path = write(tmp_path / source, rows)
    report = encode_file(config(bundle, path, tmp_path / target, window=3))
    assert (report.rows, report.dimension, report.invalid, report.resumed) == (4, 32, 0, 0)
    assert report.tokens == sum(map(len, encoder.tokenize(TEXTS)))
    ids, vectors = read(tmp_path / target)
    assert ids == IDS
    np.testing.assert_allclose(vectors, encoder.encode(TEXTS), atol=RUN_ERROR)
    names = {source, target} | ({"v.ids.jsonl"} if target == "v.npy" else set())
    assert {path.name for path in tmp_path.iterdir()} == names
    assert count_records(str(path)) == (8 if source == "in.jsonl" else 4)


@pytest.mark.parametrize("target", ["v.jsonl", "v.parquet", "v.arrow"])
def test_integer_ids_and_texts_without_a_vector(bundle, encoder, tmp_path, target):
    rows = [{"id": 7, "body": "the river"}, {"id": -1, "body": None}, {"id": 8, "body": " "}]
    path = write(tmp_path / "in.parquet", rows)
    report = encode_file(
        config(bundle, path, tmp_path / target, options={"errors": "nan"}, window=2)
    )
    assert (report.rows, report.invalid) == (3, 2)
    ids, vectors = read(tmp_path / target)
    assert ids == [7, -1, 8]
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("precision", "dtype", "columns"),
    [("float16", "float16", 32), ("int8", "int8", 32), ("ubinary", "uint8", 4)],
)
@pytest.mark.parametrize("target", ["v.npy", "v.parquet", "v.jsonl"])
def test_precisions(bundle, encoder, tmp_path, precision, dtype, columns, target):
    path = write(tmp_path / "in.csv", [{"id": "x", "body": text} for text in TEXTS])
    options = {"precision": precision}
    report = encode_file(config(bundle, path, tmp_path / target, options=options))
    assert (report.dtype, report.dimension) == (dtype, columns)
    expected = encoder.encode(TEXTS, precision=precision)
    if target == "v.npy":
        assert np.load(tmp_path / target).dtype == dtype
    if target == "v.parquet":
        import pyarrow.parquet

        numbers = pyarrow.parquet.read_schema(tmp_path / target).field("embedding").type.value_type
        assert np.dtype(numbers.to_pandas_dtype()) == dtype
    np.testing.assert_array_equal(rows_of(tmp_path / target, columns).astype(dtype), expected)


def rows_of(path, columns):
    vectors = read(path)[1]
    assert vectors.shape == (4, columns)
    return vectors


def test_rows_are_numbered_without_ids(bundle, tmp_path):
    path = write(tmp_path / "in.csv", [{"id": "x", "body": text} for text in TEXTS])
    for target in ("v.parquet", "v.npy"):
        encode_file(config(bundle, path, tmp_path / target, id_field=None, window=3))
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert table["id"].to_pylist() == [0, 1, 2, 3]
    assert sorted(p.name for p in tmp_path.glob("v.*")) == ["v.npy", "v.parquet"]


def many(tmp_path, n=3_000):
    path = tmp_path / "many.jsonl"
    rows = [{"id": f"n{i}", "body": f"river {i} " * (1 + i % 17)} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("target", tiers(["v.parquet", "v.npy"], fast=["v.npy"]))
def test_kills_lose_and_double_nothing(bundle, tmp_path, target):
    """In one process, and in two; the engine gives the same bits in any batch."""
    processes = 2 if target == "v.npy" else 1
    source, output, whole = many(tmp_path), tmp_path / target, tmp_path / f"whole-{target}"
    encode_file(config(bundle, source, whole, window=100, load=LoadOptions(providers="native")))
    arguments = ["encode", "--model", bundle, "--input", source, "--output", output,
                 "--text-field", "body", "--id-field", "id", "--window", 100,
                 "--providers", "native", "--processes", processes]  # fmt: skip
    folder = tmp_path / f"{target}.partial"
    done, parts = run_with_kills(arguments, KILLS if processes == 1 else 1, folder=folder)
    assert done.returncode == 0, done.stderr
    assert parts  # it was killed at least once
    assert output.read_bytes() == whole.read_bytes()
    if target == "v.npy":
        ids = output.with_suffix(".ids.jsonl").read_text().splitlines()
        assert ids == [f'"n{i}"' for i in range(3_000)]
    assert not folder.exists()


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("point", ["save", "assemble", "publish", "remove"])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_every_step(bundle, tmp_path, monkeypatch, point, after):
    """Each step is cut off before or after its work, and the next run mends it."""
    from mirror_rt.bulk.job import JobFolder

    source, output = many(tmp_path, 500), tmp_path / "v.npy"
    encode_file(config(bundle, source, tmp_path / "whole.npy", window=100))
    step = getattr(JobFolder, point)

    def cut_off(job, *arguments):
        if point == "save" and job.parts < 2:
            return step(job, *arguments)
        if after:
            step(job, *arguments)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(JobFolder, point, cut_off)
        encode_file(config(bundle, source, output, window=100))
    if point != "publish" or not after:
        try:
            encode_file(config(bundle, source, output, window=100, resume=True))
        except OutputExistsError:
            assert (point, after) == ("remove", True)  # all was done
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert not (tmp_path / "v.npy.partial").exists()


def interrupt_after(monkeypatch, parts, error):
    from mirror_rt.bulk.job import JobFolder

    save = JobFolder.save

    def save_or_fail(job, *saved):
        if job.parts == parts:
            raise error
        save(job, *saved)

    monkeypatch.setattr(JobFolder, "save", save_or_fail)


def test_a_full_disk_loses_nothing(cli, bundle, tmp_path, monkeypatch):
    source, output = many(tmp_path, 300), tmp_path / "v.npy"
    options = ("encode", "--model", bundle, "--input", source, "--output", output,
               "--text-field", "body", "--window", 100)  # fmt: skip
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2, OSError(errno.ENOSPC, "No space left on device", "v.npy"))
        result = cli(*options)
    assert result.code == 1
    assert "No space left on device" in result.err
    assert f"200 texts are saved in {output}.partial: go on with --resume" in result.err
    again = cli(*options)
    assert again.code == 1
    assert "go on with --resume, or start anew with --overwrite" in again.err
    result = cli(*options, "--resume")
    assert result.code == 0
    assert "200 by an earlier run" in result.err
    assert len(np.load(output)) == 300


@pytest.mark.parametrize("processes", tiers([1, 2], fast=[1]))
def test_a_kill_costs_the_window_that_runs(bundle, tmp_path, monkeypatch, processes):
    """Windows that ran do not run again, and the output has the bytes of an unbroken job."""
    source, output = many(tmp_path, 1_000), tmp_path / "v.npy"
    whole = encode_file(config(bundle, source, tmp_path / "whole.npy", window=300))
    windows = count_runs(monkeypatch, bundle, source, tmp_path / "runs.npy")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stopped:
        run, runs = BundleModel.run_batch, iter(range(sum(windows[:2]) + 1))

        def run_some(*arguments, **options):
            if next(runs, None) is None:
                raise KeyboardInterrupt
            return run(*arguments, **options)

        patch.setattr(BundleModel, "run_batch", run_some)
        encode_file(config(bundle, source, output, window=300))
    assert re.fullmatch(r"interrupted; 600 texts are saved in .*", str(stopped.value))
    report = encode_file(
        config(bundle, source, output, window=300, resume=True, processes=processes)
    )
    assert (report.rows, report.resumed) == (1_000, 600)
    assert report.tokens < whole.tokens / 2
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert not (tmp_path / "v.npy.partial").exists()


def count_runs(monkeypatch, bundle, source, output):
    """How often the model runs for each window of 300 texts."""
    from mirror_rt.bulk.job import JobFolder

    with monkeypatch.context() as patch:
        run, save, counts = BundleModel.run_batch, JobFolder.save, [0]

        def counted(*arguments, **options):
            counts[-1] += 1
            return run(*arguments, **options)

        def saved(*arguments):
            save(*arguments)
            counts.append(0)

        patch.setattr(BundleModel, "run_batch", counted)
        patch.setattr(JobFolder, "save", saved)
        encode_file(config(bundle, source, output, window=300))
    return counts


def test_windows_of_large_models_have_fewer_characters(bundle, tmp_path):
    """So that work is saved as often as with small ones."""
    folder = tmp_path / "large"
    shutil.copytree(bundle, folder)
    described = find_bundle(str(folder), LoadOptions())
    small = window_characters(described, LoadOptions())
    assert small == 2_000_000
    graph = next(folder.rglob("model.onnx"))
    with (graph.parent / "model.onnx_data").open("wb") as weights:
        weights.truncate(900 << 20)  # a file of nothing takes no place
    assert window_characters(described, LoadOptions()) == pytest.approx(small / 10, rel=0.01)


def test_ctrl_c(command, bundle, tmp_path):
    source, output = many(tmp_path, 20_000), tmp_path / "v.npy"
    line = [sys.executable, "-m", "mirror_rt.cli", "encode", "--model", bundle, "--input", source,
            "--output", output, "--text-field", "body", "--window", 50]  # fmt: skip
    with subprocess.Popen(
        [*map(str, line), "--processes", "2"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        while count_parts(tmp_path / "v.npy.partial") < 2:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.startswith("mirror-rt: error: interrupted; ")
    assert err.count("\n") == 1
    assert "go on with --resume" in err


def test_a_killed_worker_is_an_error_and_no_process_stays(bundle, tmp_path, monkeypatch):
    from mirror_rt.bulk import run

    source = many(tmp_path, 2_000)
    save = run.JobFolder.save

    def save_and_kill(job, *saved):
        save(job, *saved)
        for process in multiprocessing.active_children():
            process.kill()  # which allows for one that has just been waited for

    monkeypatch.setattr(run.JobFolder, "save", save_and_kill)
    with pytest.raises(ProcessGroupError, match=r"processes ended.* [1-9]00 texts are saved"):
        encode_file(config(bundle, source, tmp_path / "v.npy", window=100, processes=2))
    assert not multiprocessing.active_children()


@pytest.mark.full
def test_processes_share_a_cache_and_equal_texts_run_once(bundle, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"river {i % 7}\nold town\n" for i in range(300)))
    load = LoadOptions(threads=1, cache=tmp_path / "vectors.cache")
    outputs, reports = [], []
    for number, given in enumerate((load, load, LoadOptions(threads=1))):
        output = tmp_path / f"{number}.npy"
        settings = config(bundle, path, output, window=100, processes=2, load=given)
        reports.append(encode_file(settings))
        outputs.append(np.load(output))
    assert (reports[0].rows, reports[1].tokens) == (600, 0)
    assert 0 < reports[0].tokens < reports[2].tokens < 2400  # with every text, at least
    assert outputs[0].tobytes() == outputs[1].tobytes()
    np.testing.assert_allclose(outputs[0], outputs[2], atol=NORM_ERROR)


def test_a_job_of_something_else_is_refused(bundle, tmp_path, monkeypatch):
    source, output = many(tmp_path, 300), tmp_path / "v.npy"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="gone"):
        interrupt_after(patch, 1, OSError("gone"))
        encode_file(config(bundle, source, output, window=100))
    for change, message in (
        ({"window": 50}, "window was 100, now 50"),
        ({"options": {"truncate_dim": 8}}, "truncate_dim was None, now 8"),
        ({"id_field": None}, "id_field was 'id', now None"),
    ):
        with pytest.raises(DataError, match=message):
            encode_file(config(bundle, source, output, **({"window": 100} | change), resume=True))
    text = source.read_text()
    source.write_text(text.replace("river 299", "river 298"))
    with pytest.raises(DataError, match=r"v.npy.partial is of another job: input was '\w+', now"):
        encode_file(config(bundle, source, output, window=100, resume=True))
    source.write_text(text)
    part = next((tmp_path / "v.npy.partial").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-100])
    encode_file(config(bundle, source, output, window=100, resume=True))
    assert len(np.load(output)) == 300


def test_a_folder_that_is_no_job_is_left_alone(bundle, tmp_path):
    precious = tmp_path / "v.npy.partial" / "precious"
    precious.parent.mkdir()
    precious.touch()
    with pytest.raises(DataError, match="is in the way"):
        encode_file(config(bundle, many(tmp_path, 10), tmp_path / "v.npy", overwrite=True))
    assert precious.exists()


def test_two_jobs_of_one_output(bundle, tmp_path):
    from mirror_rt.bulk.job import open_job

    source, output = many(tmp_path, 10), tmp_path / "v.npy"
    with open_job(output, Identity({}), with_ids=True, resume=False, overwrite=False):
        with pytest.raises(OutputExistsError, match="another process is at work on it"):
            encode_file(config(bundle, source, output, resume=True))
        assert (tmp_path / "v.npy.partial" / "job.json").is_file()


def test_input_that_changes_while_it_is_read(bundle, tmp_path, monkeypatch):
    from mirror_rt.bulk.job import JobFolder

    source, save = many(tmp_path, 300), JobFolder.save

    def save_and_append(job, *arguments):
        save(job, *arguments)
        with source.open("a") as file:
            file.write('{"id": "late", "body": "late"}\n')

    monkeypatch.setattr(JobFolder, "save", save_and_append)
    with pytest.raises(DataError, match="was changed while it was read"):
        encode_file(config(bundle, source, tmp_path / "v.npy", window=100))
    assert not (tmp_path / "v.npy").exists()


def test_an_unusable_text_far_into_the_file(bundle, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("river\n" * 250 + "\n")
    for processes in (2, 1):
        settings = config(bundle, path, tmp_path / "v.npy", window=100, processes=processes,
                          overwrite=True)  # fmt: skip
        with pytest.raises(InvalidTextError, match=r"text 251: the string is empty.*200 texts are"):
            encode_file(settings)
    report = encode_file(
        config(bundle, path, tmp_path / "v.npy", window=100, options={"errors": "nan"}, resume=True)
    )
    assert (report.rows, report.resumed, report.invalid) == (251, 200, 1)


ROWS = ["river " * 400, "", None, 7, "town", " ", "", "", "", "", "hill"]
COUNTS = {"rows": 11, "invalid": 8, "empty": 7, "cut": 1,
          "first": {"invalid": [2, 3, 4, 6, 7], "empty": [2, 3, 6, 7, 8], "cut": [1]}}  # fmt: skip


@pytest.mark.parametrize("errors", ["nan", "zero"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_job_counts_what_has_no_whole_vector(bundle, tmp_path, errors, processes, monkeypatch):
    """Whatever takes the place of a vector, and also over an interruption."""
    path = write(tmp_path / "in.jsonl", [{"id": i, "body": row} for i, row in enumerate(ROWS)])
    (tmp_path / "in.jsonl").write_text(path.read_text().replace(', "body": null', ""))
    run = config(bundle, path, tmp_path / "v.npy", window=4, processes=processes, resume=True,
                 options={"errors": errors})  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(JobFolder, "assemble", Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="11 texts are saved"):
            encode_file(run)
    report = encode_file(run)
    assert report.counts.to_dict() == COUNTS
    assert (report.resumed, report.counts.vectors) == (11, 3)
    bad = np.load(tmp_path / "v.npy")[[1, 2, 3, *range(5, 10)]]
    assert np.isnan(bad).all() if errors == "nan" else not bad.any()


def test_the_command_line_names_the_rows(bundle, tmp_path, cli):
    path = write(tmp_path / "in.jsonl", [{"body": row} for row in ROWS])
    done = cli("encode", bundle, "--input", path, "--text-field", "body",
               "--output", "-", "--errors", "nan", "--precision", "float16")  # fmt: skip
    assert ("; 8 could not be encoded (rows 2, 3, 4, 6, 7 ...); 7 are empty (rows 2, 3, 6, 7, 8 "
            "...); 1 were cut to fit (rows 1)\n") in done.err  # fmt: skip


@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl"])
def test_a_column_without_texts_is_no_output(bundle, tmp_path, name):
    path = write(tmp_path / name, [{"id": 1, "body": 7}, {"id": 2, "body": 8}])
    with pytest.raises(DataError, match="none of its 2 rows has a text that can be encoded"):
        encode_file(config(bundle, path, tmp_path / "v.npy", options={"errors": "zero"}))
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize("pair", [("zero", "nan"), ("nan", "zero"), ("zero", "raise")])
def test_what_becomes_of_a_bad_text_may_change(bundle, tmp_path, pair, monkeypatch):
    path = write(tmp_path / "in.jsonl", [{"id": 1, "body": "river"}, {"id": 2, "body": ""}])
    first, then = (
        config(bundle, path, tmp_path / "v.npy", resume=True, options={"errors": one})
        for one in pair
    )
    with monkeypatch.context() as patch:
        patch.setattr(JobFolder, "assemble", Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="2 texts are saved"):
            encode_file(first)
    if pair[1] == "raise":
        with pytest.raises(DataError, match=r"rows without a vector: 1 could not .*\(rows 2\)"):
            encode_file(then)
        return
    encode_file(then)
    bad = np.load(tmp_path / "v.npy")[1]
    assert np.isnan(bad).all() if pair[1] == "nan" else not bad.any()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", 'id,body\n1,"a\n', "line 2: not CSV: unexpected end of data"),
        ("in.csv", "id,text\n1,a\n", "has no column 'body'; its columns are id, text"),
        ("in.csv", "id,body,body\n1,a,b\n", "has 2 columns 'body'"),
        ("in.csv", "id,body\n1\n", "line 2: 1 cells, the header has 2"),
        ("in.csv", "id,body\n1,a\n,b\n", "text 2 has no id in the field 'id'"),
        ("in.csv", "id,body\n1,caf\udce9\n", "not UTF-8"),
        ("in.csv", "id,body\n1,a\0\n", "line 2: a NUL byte"),
        ("in.csv", "", "is empty"),
        ("in.csv", "id,body\n", "holds no texts"),
        ("in.jsonl", "", "holds no texts"),
        ("in.jsonl", '{"id": null, "body": "a"}', "text 1 has no id"),
        ("in.jsonl", '{"body": "a"}', "line 1: expected an object with the field 'id'"),
        ("in.jsonl", '{"id": 1, "body": "a"}\n{"id": "b", "body": "b"}',
         "text 2 has the id 'b', and the ids before are of type int"),
        ("in.jsonl", '{"id": true, "body": "a"}', "the id True, expected a string or an integer"),
        ("in.jsonl", '{"id": 9223372036854775808, "body": "a"}', "does not fit into 64 bits"),
        ("in.parquet", "PAR1, it says", "is not a Parquet file"),
        ("in.txt", "a\n", "which have no fields"),
    ],
)  # fmt: skip
def test_bad_files(cli, bundle, tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    for output in (tmp_path / "v.npy", "-"):
        result = cli("encode", "--model", bundle, "--input", path, "--output", output,
                     "--text-field", "body", "--id-field", "id")  # fmt: skip
        assert result.code in (1, 2), result.err
        assert message in result.err
        assert "Traceback" not in result.err
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_parquet_columns_of_another_type(bundle, tmp_path):
    path = write(tmp_path / "in.parquet", [{"id": "a", "body": 1.5}])
    with pytest.raises(DataError, match="column 'body' is of type double, expected string"):
        encode_file(config(bundle, path, tmp_path / "v.npy"))
    with pytest.raises(DataError, match="no column 'text'; its columns are id, body"):
        encode_file(config(bundle, path, tmp_path / "v.npy", text_field="text"))


def test_what_goes_with_streams(cli, bundle, tmp_path, monkeypatch):
    options = ("encode", "--model", bundle, "--input", "-", "--output")
    result = cli(*options, tmp_path / "v.npy", "--resume")
    assert result.code == 2
    assert "--resume needs an input file and an output file" in result.err
    result = cli(*options, tmp_path / "v.xlsx")
    assert result.code == 2
    assert "expected a name in .npy, .jsonl, .parquet, .arrow, .feather, or -" in result.err


def test_progress(bundle, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    encode_file(config(bundle, many(tmp_path, 400), tmp_path / "v.npy", show_progress_bar=True))
    last = capfd.readouterr().err.split("\r")[-1]
    assert "400/400" in last
    assert "tokens/s, padding" in last


@pytest.mark.parametrize("column", ["id", "body"])
def test_parquet_that_is_not_utf8(cli, bundle, tmp_path, column):
    import pyarrow
    import pyarrow.parquet

    def strings(*values):
        return pyarrow.array(values, pyarrow.binary()).view(pyarrow.string())

    columns = {"id": strings(b"a", b"b", b"c"), "body": strings(b"river", b"town", b"road")}
    columns[column] = strings(b"fine", b"fine, too", b"l\xe9g\xe8re")
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    source, output = tmp_path / "in.parquet", tmp_path / "v.npy"
    result = cli("encode", "--model", bundle, "--input", source, "--text-field", "body",
                 "--id-field", "id", "--output", output)  # fmt: skip
    one_line_error(result, code=1, contains=f"row 3: the column '{column}' is not UTF-8 (byte 0xe9")
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


@pytest.mark.parametrize("target", ["v.npy", "v.jsonl", "v.parquet", "v.arrow"])
def test_an_id_that_is_not_unicode_is_said_before_the_work(bundle, tmp_path, monkeypatch, target):
    def encode(*_, **__):
        raise AssertionError("it encodes")

    monkeypatch.setattr(BundleModel, "run_batch", encode)
    path = write(tmp_path / "in.jsonl", [{"id": name, "body": "x"} for name in ("a", "\ud800")])
    with pytest.raises(DataError, match=r"text 2 has the id '\\ud800', which is not valid Unicode"):
        encode_file(config(bundle, path, tmp_path / target))


def test_a_link_to_nothing_is_not_replaced(cli, bundle, tmp_path):
    (tmp_path / "in.txt").write_text("a\n")
    (tmp_path / "v.npy").symlink_to(tmp_path / "nothing")
    arguments = ["encode", "--model", bundle, "--input", tmp_path / "in.txt", "--output",
                 tmp_path / "v.npy"]  # fmt: skip
    one_line_error(cli(*arguments), code=1, contains="v.npy already exists")
    assert (tmp_path / "v.npy").is_symlink()
    assert cli(*arguments, "--overwrite").code == 0
    assert not (tmp_path / "v.npy").is_symlink()
    assert np.load(tmp_path / "v.npy").shape == (1, 32)


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "csv"])
def test_a_line_without_end(command_in_child, tmp_path, suffix):
    """In 500 MB of memory, and of a file that has no end: `head` would not help."""
    path = tmp_path / f"in.{suffix}"
    first = b'{"text": "a"}' if suffix == "jsonl" else b"text"
    path.write_bytes(first + b"\n" + b"x" * ((1 << 26) + 1) + b"\n")
    endless = tmp_path / f"endless.{suffix}"
    endless.symlink_to("/dev/zero")
    code = f"""
import resource
from mirror_rt.bulk.reading import iter_records
from mirror_rt.errors import DataError
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 500_000_000,) * 2)
for path in ({str(path)!r}, {str(endless)!r}):
    try:
        print(sum(len(row[0]) for row in iter_records(path, "text", None)))
    except DataError as error:
        print(error)
"""
    first, second = command_in_child(code).splitlines()
    assert "line 2: more than 67,108,864" in first
    assert "line 1: more than 67,108,864" in second
