"""`mirror-rt encode` with sparse and late-interaction models: lines of what their classes give."""

import json

import numpy as np
import pytest

from late_models import save_pylate
from mirror_rt import ConfigError, InvalidTextError, MultiVectorEncoder, SparseEncoder
from mirror_rt.bulk import BulkConfig, DatasetConfig, encode_dataset, encode_file

TEXTS = ["the river runs, slowly", "word", "a doctor met a physician in the old town", "word"] * 200


@pytest.fixture(scope="module")
def colbert(tiny_bert, tmp_path_factory):
    return save_pylate(tiny_bert, tmp_path_factory.mktemp("late") / "model")


@pytest.fixture
def models(colbert, tiny_sparse):
    """Models of every kind that gives no vector of a text."""
    return {
        "sparse": tiny_sparse("bert"),
        "table": tiny_sparse("bert", looks_up=True),
        "late": colbert,
    }


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("name,body\n" + "".join(f't{i},"{one}"\n' for i, one in enumerate(TEXTS)))
    return path


def read(text):
    return [json.loads(line) for line in text.splitlines()]


def expected(folder, kind, task, **options):
    """The fields of each text, by the class of the kind."""
    if kind == "late":
        with MultiVectorEncoder.load(folder) as encoder:
            found = getattr(encoder, f"encode_{task}")(TEXTS, **options)
            return [{"embeddings": one.astype(float).tolist()} for one in found]
    with SparseEncoder.load(folder) as encoder:
        return getattr(encoder, f"encode_{task}")(TEXTS, **options).as_dict()


def same(found, fields):
    assert list(found) == list(fields)
    for name, values in fields.items():  # a line has each number in its shortest form
        np.testing.assert_array_equal(np.float32(found[name]), np.float32(values))


@pytest.mark.parametrize("task", ["document", "query"])
@pytest.mark.parametrize("kind", ["sparse", "table", "late"])
def test_lines_are_those_of_the_classes(models, kind, task, rows, tmp_path, cli):
    out = tmp_path / "out.jsonl"
    line = ["encode", models[kind], "--input", rows, "--text-field", "body", "--id-field", "name",
            "--output", out, "--task", task]  # fmt: skip
    result = cli(*line)
    assert (result.code, result.out) == (0, ""), result.err
    assert f"{out}: {len(TEXTS)} rows of" in result.err
    found = read(out.read_text())
    assert [one.pop("id") for one in found] == [f"t{i}" for i in range(len(TEXTS))]
    for one, fields in zip(found, expected(models[kind], kind, task), strict=True):
        same(one, fields)
    assert cli(*line).code == 1  # the output exists
    assert cli(*line, "--overwrite", "--quiet").err == ""


@pytest.mark.parametrize(
    ("kind", "flags", "options"),
    [
        ("sparse", ["--max-active-dims", "7"], {"max_active_dims": 7}),
        ("sparse", ["--threshold", "0.4", "--on-too-long", "truncate-left"],
         {"threshold": 0.4, "on_too_long": "truncate-left"}),
        ("sparse", ["--prompt", "the river "], {"prompt": "the river "}),
        ("late", ["--pool-factor", "2"], {"pool_factor": 2}),
        ("late", ["--precision", "int8", "--batch-size", "3"],
         {"precision": "int8", "batch_size": 3}),
    ],
)  # fmt: skip
def test_options_are_those_of_the_classes(models, kind, flags, options, tmp_path, cli):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in TEXTS))
    result = cli("encode", models[kind], "--input", texts, "--output", "-", *flags)
    assert result.code == 0, result.err
    found = read(result.out)
    assert [one.pop("index") for one in found] == list(range(len(TEXTS)))
    for one, fields in zip(found, expected(models[kind], kind, "document", **options), strict=True):
        same(one, fields)


def test_a_bundle_and_python(models, tmp_path, rows):
    from mirror_export import ExportConfig, export_bundle

    folder = tmp_path / "bundle"
    export_bundle(ExportConfig(str(models["sparse"]), folder))
    job = BulkConfig(str(folder), str(rows), str(tmp_path / "out.jsonl"), "body", max_active_dims=3)
    report = encode_file(job)
    assert (report.rows, report.dimension, report.dtype) == (len(TEXTS), 900, "float32")
    found = read((tmp_path / "out.jsonl").read_text())
    for one, fields in zip(found, expected(folder, "sparse", "document", max_active_dims=3),
                           strict=True):  # fmt: skip
        assert one.pop("index") >= 0
        same(one, fields)


@pytest.mark.parametrize("kind", ["sparse", "late"])
def test_texts_that_cannot_be_encoded(models, kind, tmp_path, cli):
    path, out = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, " ", "word"]))
    job = BulkConfig(str(models[kind]), str(path), str(out))
    with pytest.raises(InvalidTextError, match=rf"{path.name}, text {len(TEXTS) + 1}"):
        encode_file(job)
    assert not out.exists()
    result = cli("encode", models[kind], "--input", path, "--output", out, "--errors", "zero")
    if kind == "late":
        assert result.code != 0
        assert "--errors is not for a model that makes a vector of each token" in result.err
        return
    assert f"1 could not be encoded (rows {len(TEXTS) + 1}); 1 are empty" in result.err
    found = read(out.read_text())
    assert found[-2] == {"index": len(TEXTS), "indices": [], "values": []}
    assert found[-1]["indices"]
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "holds no texts" in cli("encode", models[kind], "--input", empty, "--output", "-").err


@pytest.mark.parametrize(
    ("kind", "flags", "said"),
    [
        ("sparse", ["--truncate-dim", "3"], "--truncate-dim is not for a model that weighs words"),
        ("sparse", ["--precision", "int8"], "--precision is not for a model that weighs words"),
        ("sparse", ["--resume"], "--resume is not for a model that weighs words"),
        ("sparse", ["--pool-factor", "2"], "--pool-factor is not for a model that weighs words"),
        ("sparse", ["--errors", "nan"], "--errors must be 'raise' or 'zero'"),
        ("sparse", ["--max-active-dims", "0"], "at least 1"),
        ("late", ["--processes", "2"], "--processes is not for a model that makes a vector of eac"),
        ("late", ["--threshold", "1"], "--threshold is not for a model that makes a vector of eac"),
        ("late", ["--pool-factor", "0.5"], "pool_factor must be at least 1"),
        ("late", ["--task", "query", "--pool-factor", "2"], "--pool-factor is for documents"),
        ("late", ["--output", "v.npy"], "NAME.jsonl or -, as the model makes a vector of each tok"),
        ("dense", ["--task", "query"], "--task is not for a model that makes vectors of texts"),
        ("dense", ["--threshold", "1"], "--threshold is not for a model that makes vectors of tex"),
    ],
)
def test_what_does_not_go_together_is_refused(models, bundle, kind, flags, said, rows, cli):
    folder = {**models, "dense": bundle}[kind]
    line = ["encode", folder, "--input", rows, "--text-field", "body"]
    result = cli(*line, *([] if "--output" in flags else ["--output", "out.jsonl"]), *flags)
    assert result.code != 0
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("kind", ["sparse", "late"])
def test_datasets_are_of_dense_vectors(models, kind, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "texts.txt").write_text("word\n")
    job = DatasetConfig(str(models[kind]), str(tmp_path / "in"), str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="encode the files one by one, each to"):
        encode_dataset(job)
