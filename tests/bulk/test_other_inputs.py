"""Vectors of another input are never overwritten unasked, whatever its files are called."""

import shutil

import pyarrow
import pyarrow.parquet
import pytest

from folder_contents import contents
from mirror_rt import DataError, OutputExistsError
from mirror_rt.bulk import DatasetConfig, encode_dataset

FORMATS = ("rows.parquet", "rows.csv", "rows.jsonl", "rows.txt")


def write(path, texts):
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    elif path.suffix == ".csv":
        path.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    elif path.suffix == ".jsonl":
        path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    else:
        path.write_text("".join(f"{text}\n" for text in texts))


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"shard": "0/1"}])
def test_files_of_the_same_names_in_another_folder(bundle, tmp_path, options):
    for name in FORMATS:
        write(tmp_path / "a" / name, ["a river", "the town"])
        write(tmp_path / "b" / name, ["the old road", "a doctor", "the rain"])
    out = tmp_path / "out"
    encode_dataset(DatasetConfig(str(bundle), str(tmp_path / "a"), str(out)))
    before = contents(out)
    with pytest.raises(DataError, match=r"is of another job: input was .*/a', now .*/b'"):
        encode_dataset(DatasetConfig(str(bundle), str(tmp_path / "b"), str(out), **options))
    assert contents(out) == before


@pytest.mark.parametrize("name", FORMATS)
def test_other_files_in_the_same_folder(bundle, tmp_path, name):
    source, out = tmp_path / "in", tmp_path / "out"
    write(source / name, ["a river", "the town"])
    job = DatasetConfig(str(bundle), str(source), str(out))
    encode_dataset(job)
    before = contents(out)
    shutil.rmtree(source)
    write(source / name, ["the old road", "a doctor", "the rain"])
    with pytest.raises(OutputExistsError, match=f"1 parts that are damaged .*{name}-00000"):
        encode_dataset(job)
    assert contents(out) == before
    again = DatasetConfig(str(bundle), str(source), str(out), overwrite=True)
    assert encode_dataset(again).rows == 3


def test_a_damaged_part_is_not_overwritten_unasked(bundle, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    write(source / "rows.txt", ["a river"])
    job = DatasetConfig(str(bundle), str(source), str(out))
    encode_dataset(job)
    part = out / "rows.txt-00000.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(OutputExistsError, match="encode them again with --resume"):
        encode_dataset(job)
    assert encode_dataset(DatasetConfig(str(bundle), str(source), str(out), resume=True)).rows == 1
