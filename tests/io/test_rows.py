"""Rows are the same in every format, whatever the case of its name and whether it is packed."""

import csv
import gzip
import io
import json

import pyarrow.parquet
import pytest

from mirror_rt import ConfigError, DataError
from mirror_rt.bulk import DatasetConfig, encode_dataset
from mirror_rt.bulk.reading import find_blocks, iter_records, read_block
from mirror_rt.cli.rows import read_rows
from mirror_rt.io.rows import FORMATS, METADATA, read_table, read_texts, row_format
from mirror_rt.io.storage import Folder

ROWS = [
    {"body": "the river runs", "id": "1"},
    {"body": 'another, "old" text', "id": "2"},
    {"body": "the town é", "id": "3"},
]
FIELDS = [suffix for suffix, found in FORMATS.items() if found.has_fields]
NAMES = [name for suffix in FIELDS for name in (f"rows{suffix}", f"ROWS{suffix.upper()}")]
NAMES += [f"rows{suffix}{gz}" for suffix in FIELDS if suffix != ".parquet" for gz in (".gz", ".GZ")]


def content(suffix, rows):
    if suffix == ".parquet":
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file.getvalue()
    if suffix == ".csv":
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        return text.getvalue().encode()
    if suffix == ".tsv":
        return "".join(
            "\t".join(cells) + "\n" for cells in [rows[0], *map(dict.values, rows)]
        ).encode()
    if suffix == ".json":
        return b"\xef\xbb\xbf" + json.dumps(rows, indent=1).encode()
    assert suffix in (".jsonl", ".ndjson", ".txt"), f"say here how {suffix} is written"
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write(path, rows=ROWS):
    name = path.name.lower()
    data = content("." + name.removesuffix(".gz").rsplit(".", 1)[-1], rows)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_reader_gives_the_same_rows(tmp_path, name):
    path = write(tmp_path / name)
    expected = [(row["body"], row["id"]) for row in ROWS]
    assert list(iter_records(str(path), "body", "id")) == expected
    assert [row for row, _ in read_rows(str(path), "body,id", 2)] == expected
    assert [(text, label) for text, label in read_rows(str(path), "body", 1, "id")] == expected
    table = read_table(path)
    assert list(zip(table.column("body"), table.column("id"), strict=True)) == expected
    (block,) = find_blocks(str(path), outside=Folder.at(str(tmp_path / "out")))
    found = [row for batch in read_block(block, "body", None, 2) for row in batch.to_pylist()]
    assert found == ROWS
    texts = write(tmp_path / f"texts-{name}", [{"text": row["body"]} for row in ROWS])
    assert read_texts(texts) == [row["body"] for row in ROWS]
    assert [text for text, _ in read_rows(str(texts), None, 1)] == [row["body"] for row in ROWS]


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_is_not_there_is_named(tmp_path, name):
    path = write(tmp_path / name)
    with pytest.raises(DataError, match="'absent'"):
        list(iter_records(str(path), "absent", None))
    with pytest.raises(DataError, match="'text'"):
        read_texts(path)


@pytest.mark.parametrize("name", ["a.txt", "a", "-", "a.TXT.gz"])
def test_options_that_lines_cannot_honour(tmp_path, name):
    with pytest.raises(ConfigError, match=r"--text-field body: .* read as lines"):
        iter_records(name, "body", None)
    with pytest.raises(ConfigError, match=r"--id-field id: .* read as lines"):
        iter_records(name, "text", "id")
    with pytest.raises(ConfigError, match=r"--fields body: .* read as lines"):
        read_rows(name, "body", 1)
    with pytest.raises(ConfigError, match=r"--label-field l: .* read as lines"):
        read_rows(name, None, 1, "l")


def test_columns_that_lines_do_not_have(tmp_path):
    (tmp_path / "a.txt").write_text("a river\n")
    (block,) = find_blocks(str(tmp_path), outside=Folder.at(str(tmp_path / "out")))
    with pytest.raises(ConfigError, match=r"--columns id: .*a.txt is read as lines"):
        list(read_block(block, "text", ["id"], 10))


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"[1]", "item 1: expected an object"), (b"[{}]", r"item 1: .* field 'text'"),
     (b"[", "not JSON"), (b"[" * 100_000, "not JSON"), (b"[\xff]", "not UTF-8"),
     (b'[{"text": ' + b"[" * 40 + b"]" * 40 + b"}]", r"item 1: .* too deep")],
)  # fmt: skip
def test_lists_that_are_damaged(tmp_path, data, said):
    path = tmp_path / "rows.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=said):
        list(row_format(path).numbered(path, "text"))


def test_json_lines_that_are_called_json(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(content(".jsonl", ROWS))
    assert list(iter_records(str(path), "body", None)) == [(row["body"],) for row in ROWS]


def test_parquet_that_is_packed_again_is_refused(tmp_path):
    with pytest.raises(DataError, match="gunzip"):
        row_format(tmp_path / "rows.parquet.GZ")


def test_a_folder_of_every_format_gives_all_rows(bundle, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for i, name in enumerate(NAMES):
        write(source / f"{i}-{name}")
    for name in METADATA:
        (source / name).write_text("{}")
    job = DatasetConfig(str(bundle), str(source), str(tmp_path / "out"), "body")
    assert encode_dataset(job).rows == len(NAMES) * len(ROWS)
