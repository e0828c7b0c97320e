import io

import numpy as np
import pytest

from mirror_rt import DataError
from mirror_rt.io.rows import read_table
from mirror_rt.io.text import iter_lines, numbered_csv, numbered_objects
from mirror_rt.io.vectors import open_sink


def write(tmp_path, content, name="file.txt"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_lines(tmp_path):
    path = write(
        tmp_path, b"\xef\xbb\xbffirst\r\n\n third \xc3\xa9\x85\nlast".replace(b"\x85", b"")
    )
    assert list(iter_lines(path)) == ["first", "", " third é", "last"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_line_of_a_bad_byte_in_csv(tmp_path, end):
    """It is that of the byte, however far a decoder reads ahead."""
    lines = [b"text", *[b"a river, quietly flowing".replace(b",", b"")] * 14_999, b"caf\xe9"]
    path = write(tmp_path, end.join(lines), "file.csv")
    with pytest.raises(DataError, match=r"line 15001: not UTF-8 .*: iconv -f ENCODING -t UTF-8 "):
        list(numbered_csv(path))


def test_rows_of_csv_that_end_in_carriage_returns_alone(tmp_path):
    path = write(tmp_path, b'a,b\r1,"x\ry"\r2,z', "file.csv")
    assert [row for _, row in numbered_csv(path)] == [["a", "b"], ["1", "x\ry"], ["2", "z"]]


def test_other_unicode_line_ends_stay_inside_the_line(tmp_path):
    path = write(tmp_path, "a\u2028b\x0bc\n".encode())
    assert list(iter_lines(path)) == ["a\u2028b\x0bc"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ok\nl\xe9g\xe8re\n", r"line 2: not UTF-8 \(byte 0xe9 at position 1\)"),
        (b"PK\x03\x04\x00\x00", "line 1: a NUL byte; this is not a text file"),
        (b"\x90\x04\x00\x00{}", "line 1: a NUL byte; this is not a text file"),
        ("utf-16".encode("utf-16"), "not UTF-8"),
    ],
)
def test_what_is_not_utf8(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        list(iter_lines(write(tmp_path, content)))


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(iter_lines(tmp_path / "nothing"))
    with pytest.raises(DataError, match="is a folder"):
        list(iter_lines(tmp_path))


def test_jsonl(tmp_path):
    path = write(tmp_path, b'{"text": "a"}\n\n{"text": null, "b": 1}\n')
    assert [one["text"] for _, one in numbered_objects(path, "text")] == ["a", None]
    with pytest.raises(DataError, match="line 1: expected an object with the field 'b'"):
        list(numbered_objects(path, "b"))
    with pytest.raises(DataError, match="line 1: not JSON"):
        list(numbered_objects(write(tmp_path, b"{"), "text"))


def test_table(tmp_path):
    table = read_table(write(tmp_path, b'a\tb\n"x\t1\n\ny"\t2\n'))
    assert table.column("a") == ['"x', 'y"']
    with pytest.raises(DataError, match="no column 'c', only a, b"):
        table.column("c")
    with pytest.raises(DataError, match="line 2: 3 cells, the header has 2"):
        read_table(write(tmp_path, b"a\tb\n1\t2\t3\n"))
    with pytest.raises(DataError, match="is empty"):
        read_table(write(tmp_path, b""))


@pytest.mark.parametrize("rows", [0, 1, 123_457])
def test_npy_of_any_number_of_rows(tmp_path, rows, rng):
    vectors = rng.standard_normal((rows, 3)).astype(np.float32)
    with open_sink(str(tmp_path / "v.npy"), overwrite=False) as sink:
        for part in np.array_split(vectors, 7):
            sink.write(part)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert mapped.dtype == np.float32


def test_jsonl_is_exact_and_nan_is_null(tmp_path, rng):
    import json

    vectors = rng.standard_normal((5, 4)).astype(np.float32)
    vectors[0] *= 1e-12
    vectors[3] = np.nan
    with open_sink(str(tmp_path / "v.jsonl"), overwrite=False) as sink:
        sink.write(vectors)
    records = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [record["index"] for record in records] == list(range(5))
    assert records.pop(3)["embedding"] is None
    got = np.array([record["embedding"] for record in records], dtype=np.float32)
    np.testing.assert_array_equal(got, np.delete(vectors, 3, axis=0))


def test_stdin(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("a\nб".encode())))
    assert list(iter_lines("-")) == ["a", "б"]
