"""Files of somebody else's: each is read, or refused by its name, in bounded time and memory."""

import contextlib
import gzip
import json
import random
import resource
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirror_rt import BundleError, ConfigError, DataError
from mirror_rt.bulk.reading import find_blocks, iter_records, read_block
from mirror_rt.errors import MirrorError
from mirror_rt.evaluation.readers.concepts import read_dictionary
from mirror_rt.evaluation.readers.tables import read_lexicon, read_rows, read_words
from mirror_rt.evaluation.static_vectors import StaticVectors
from mirror_rt.heads.task_heads import Heads, TaskHead
from mirror_rt.io import limits
from mirror_rt.io.limits import read_toml
from mirror_rt.io.rows import read_table, read_texts, row_format
from mirror_rt.io.storage import Folder
from mirror_rt.io.tensors import read_tensors, tensor_shapes, write_tensors
from mirror_rt.io.text import iter_lines, numbered_objects

MEGABYTE = 1 << 20


def safetensors(entries, data):
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def test_tensors_that_overlap(tmp_path):
    """Many that all lie at one place would take as many times the memory of the file."""
    path, size = tmp_path / "model.safetensors", 4096
    one = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    path.write_bytes(safetensors({f"t{i}": one for i in range(100)}, bytes(size)))
    for read in (tensor_shapes, lambda path: read_tensors(path, ["t0"])):
        with pytest.raises(BundleError, match="t1 has bytes of t0"):
            read(path)
    partly = {"a": one, "b": one | {"data_offsets": [size - 1, 2 * size - 1]}}
    path.write_bytes(safetensors(partly, bytes(2 * size)))
    with pytest.raises(BundleError, match="b has bytes of a"):
        tensor_shapes(path)


def test_headers_without_end(tmp_path):
    path = tmp_path / "model.safetensors"
    none = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    path.write_bytes(safetensors({str(i): none for i in range(limits.TENSORS + 1)}, b""))
    with pytest.raises(BundleError, match="10,001 tensors, expected at most 10,000"):
        tensor_shapes(path)
    path.write_bytes(safetensors({"a" * limits.DOCUMENT: none}, b""))
    with pytest.raises(BundleError, match="its header has"):
        tensor_shapes(path)


def test_only_the_tensors_that_are_asked_for_are_read(tmp_path):
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"a": np.ones((2, 3), np.float32), "b": np.zeros((9, 9), np.float32)})
    found = read_tensors(path, ["a", "mapping"])
    assert list(found) == ["a"]
    np.testing.assert_array_equal(found["a"], np.ones((2, 3)))


def bomb(path, block=b"a b\n" * (MEGABYTE // 4), blocks=100):
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(blocks):
            file.write(block)


READERS = [read_texts, read_table, read_lexicon, read_words,
           lambda path: read_rows(path, cells=1), lambda path: list(iter_lines(path)),
           lambda path: list(iter_records(str(path), "text", None))]  # fmt: skip


@pytest.mark.parametrize("read", READERS)
def test_a_packed_file_that_has_no_end(tmp_path, read, monkeypatch):
    monkeypatch.setattr(limits, "FREE", MEGABYTE)
    path = tmp_path / "texts.txt.gz"
    bomb(path, blocks=4)
    monkeypatch.setattr(limits, "RATIO", 2)
    with pytest.raises(DataError, match=r"texts\.txt\.gz unpacks to more than [\d,]+ bytes"):
        read(path)


def test_a_packed_file_of_texts_is_read(tmp_path):
    path = tmp_path / "texts.txt.gz"
    with gzip.open(path, "wb") as file:
        file.write("".join(f"line {i}\n" for i in range(100_000)).encode())
    assert sum(1 for _ in iter_lines(path)) == 100_000


@pytest.mark.full
def test_memory_that_is_not_there_is_said(tmp_path):
    """Wherever it ends: in a list of the rows, in a row, in a buffer of what is unpacked."""
    path = tmp_path / "table.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a\n")
        for i in range(30):
            file.write("".join(f"{i} {n} {n * n}\n" for n in range(10**5)).encode())
    code = f"""
        import resource, sys
        from pathlib import Path
        from mirror_rt.errors import DataError
        from mirror_rt.io.rows import read_table
        used = int(open('/proc/self/statm').read().split()[0]) * {resource.getpagesize()}
        resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)
        try:
            read_table(Path({str(path)!r}))
        except DataError as error:
            print(error)
    """
    for more in (20, 40, 60, 120, 160, 200):  # megabytes
        line = [sys.executable, "-c", textwrap.dedent(code), str(more)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert "needs more memory than there is" in done.stdout, (more, done.stderr)


def test_a_table_of_very_many_columns(tmp_path):
    path = tmp_path / "table.tsv"
    names = [f"c{i}" for i in range(limits.COLUMNS + 1)]
    path.write_text("\t".join(names) + "\n" + "\t".join(names) + "\n")
    with pytest.raises(DataError, match=r"has 16,385 columns, expected at most 16,384"):
        read_table(path)
    csv = tmp_path / "table.csv"
    csv.write_text(",".join(names) + "\n")
    with pytest.raises(DataError, match=r"has 16,385 columns"):
        list(row_format(csv).numbered(csv, "c0"))
    path.write_text("a\tb\ta\n1\t2\t3\n")
    with pytest.raises(DataError, match="the column 'a' more than once"):
        read_table(path)


@pytest.mark.parametrize("depth", [33, 900, 100_000])
@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_values_that_are_nested_too_deep(tmp_path, depth, kind):
    value = "[" * depth + "]" * depth if kind == "[]" else '{"a":' * depth + "1" + "}" * depth
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "a river", "more": {value}}}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 1: not JSON: "):
        list(numbered_objects(path, "text"))
    (block,) = find_blocks(str(path), outside=Folder.at(str(tmp_path / "out")))
    with pytest.raises(DataError, match="line 1"):
        list(read_block(block, "text", None, 10))


def test_values_of_few_levels_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    value = "[" * 20 + "1" + "]" * 20
    path.write_text(f'{{"text": "a [river] {{[[", "more": {value}}}\n')
    assert list(row_format(path).numbered(path, "text")) == [(1, ("a [river] {[[",))]


def word2vec(words):
    size = len(next(iter(words.values())))
    rows = b"".join(word.encode() + b" " + np.array(vector, "<f4").tobytes() + b"\n"
                    for word, vector in words.items())  # fmt: skip
    return f"{len(words)} {size}\n".encode() + rows


def test_words_beyond_those_of_the_header_are_left_out(tmp_path):
    path = tmp_path / "vectors.vec"
    path.write_text("1 2\na 3 4\nb 1 2\n")
    assert StaticVectors.read(path).encode(["a", "b"]).tolist()[1] == [0, 0]


def heads_of(folder):
    folder.mkdir(exist_ok=True)
    head = TaskHead("h", "classifier", np.ones((2, 4), np.float32), np.zeros(2, np.float32),
                    ("a", "b"))  # fmt: skip
    Heads(4, "mean", {"h": head}).write(folder)
    return folder / "heads/h.npz"


def test_compressed_weights_of_heads(tmp_path):
    path = heads_of(tmp_path)
    np.savez_compressed(path, weight=np.zeros((2, 1 << 22), np.float32), bias=np.zeros(2))
    with pytest.raises(BundleError, match="compressed, or larger than its file"):
        Heads.read(tmp_path)


def test_options_without_end(tmp_path):
    path = tmp_path / "options.toml"
    for content, message in (
        ("a = " + "[" * 10**5, "is not a TOML file"), ("#" * (limits.DOCUMENT + 1), "more than"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "is not a TOML file"),
    ):  # fmt: skip
        path.write_text(content, encoding="latin-1")
        with pytest.raises(ConfigError, match=message):
            read_toml(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_toml(tmp_path)


def parquet(path):
    table = pyarrow.table({"text": ["a river", "the town"] * 20, "n": range(40)})
    pyarrow.parquet.write_table(table, path)


def blocks_of(path):
    for block in find_blocks(str(path), outside=Folder.at(str(path.parent / "out"))):
        list(read_block(block, "text", None, 10))


# What is valid, and what reads it.
FILES = {
    "model.safetensors": (
        lambda path: write_tensors(path, {"a": np.ones((4, 3), np.float32)}),
        lambda path: read_tensors(path, ["a"]),
    ),
    "vectors.bin": (
        lambda path: path.write_bytes(word2vec({"a": [1, 2], "b": [3, 4]})), StaticVectors.read,
    ),
    "vectors.vec": (lambda path: path.write_text("2 2\na 1 2\nb 3 4\n"), StaticVectors.read),
    "glove.txt": (lambda path: path.write_text("a 1 2 3\nb 3 4 5\n"), StaticVectors.read),
    "lines.txt": (lambda path: path.write_text("a river\nthe town\n"), read_texts),
    "lines.txt.gz": (lambda path: bomb(path, b"a river\n", 3), read_texts),
    "words.tsv": (lambda path: path.write_text("a\tb\nc\td\n"), read_lexicon),
    "table.csv": (lambda path: path.write_text('text,n\n"a, b",2\nc,3\n'), read_table),
    "rows.csv": (lambda path: path.write_text('text,n\n"a, b",2\nc,3\n'), blocks_of),
    "rows.jsonl": (
        lambda path: path.write_text('{"text": "a", "m": [{"x": 2}]}\n' * 3), blocks_of,
    ),
    "rows.parquet": (parquet, blocks_of),
    "names.txt": (lambda path: path.write_text("D1||a|b\nD2+D3||c\n"), read_dictionary),
    "options.toml": (
        lambda path: path.write_text('a = 1\n[b]\nc = ["x", 2.5, {d = 1979-05-27}]\n'), read_toml,
    ),
    "h.npz": (
        lambda path: path.write_bytes(heads_of(path.parent / "made").read_bytes()),
        lambda path: (
            (path.parent / "made/heads/h.npz").write_bytes(path.read_bytes()),
            Heads.read(path.parent / "made"),
        ),
    ),
}  # fmt: skip


def mutated(content, seed):
    generator, changed = random.Random(seed), bytearray(content)
    for _ in range(generator.randint(1, 6)):
        place = generator.randrange(len(changed) + 1)
        kind = generator.choice(["flip", "cut", "insert", "repeat", "number"])
        if kind == "flip" and place < len(changed):
            changed[place] ^= 1 << generator.randrange(8)
        elif kind == "cut":
            del changed[place : place + generator.randint(1, 20)]
        elif kind == "insert":
            changed[place:place] = generator.choice([
                b"\0", b"\n", b'"', b"[" * 50, b"{" * 50, b"9" * 30, b"\xff\xfe", b",", b"\t" * 9,
                b"-1", b"1e999", b"NaN", generator.randbytes(8),
            ])  # fmt: skip
        elif kind == "repeat":
            changed[place:place] = changed[place : place + 30] * generator.randint(1, 50)
        elif place + 8 <= len(changed):
            changed[place : place + 8] = struct.pack("<q", generator.choice([-1, 0, 2**31, 2**62]))
    return bytes(changed)


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_any_change_of_any_file(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("files")
    path, (make, read) = folder / name, FILES[name]
    make(path)
    read(path)
    content = path.read_bytes()

    @settings(max_examples=400)
    @given(st.integers(0, 2**63), st.binary(max_size=20))
    @example(2_823_790_223_276, b"")  # of rows.parquet: a column's name is not UTF-8
    def check(seed, prefix):
        path.write_bytes(prefix * (seed % 5 == 0) + mutated(content, seed))
        with contextlib.suppress(MirrorError, OSError):
            read(path)

    check()
