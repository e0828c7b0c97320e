"""What differs between systems: names of files, encodings, processors, what is lacking."""

import ctypes
import json
import os
import shutil
import subprocess
import sys

import pytest

from mirror_rt import ConfigError, DataError, system
from mirror_rt.bulk import DatasetConfig, encode_dataset
from mirror_rt.io.atomic import new_file
from mirror_rt.server.config import ListenConfig
from paths import TESTS

LONG = "x" * 242


@pytest.mark.parametrize(
    ("name", "windows"),
    [("con", True), ("NUL.txt", True), ("lpt1.tar.gz", True), ("a:b", True), ("a.", True),
     ("a ", True), ("what?.csv", True), (LONG, False), ("я" * 121, False)],
)  # fmt: skip
def test_names_that_cannot_be_written(name, windows):
    assert system.name_trouble(name, windows=windows)
    assert windows != bool(system.name_trouble(name, windows=False))


@pytest.mark.parametrize("name", ["console", "nullable.csv", ".hidden", "a b.csv", "я" * 120])
def test_names_that_can(name):
    assert system.name_trouble(name, windows=True) is None


def test_an_output_whose_name_is_too_long_is_refused_before_it_is_made(tmp_path):
    with pytest.raises(OSError, match="has 242 bytes, and at most 241"):
        new_file(tmp_path / LONG, overwrite=True).__enter__()


def test_names_that_differ_by_case(tmp_path, monkeypatch):
    (tmp_path / "a").touch()
    assert system.ignores_case(tmp_path / "later") is (tmp_path / "A").exists()
    monkeypatch.setattr(system, "ignores_case", lambda folder: True)
    assert "'a/x' and 'A/X' are the same file" in system.names_trouble(["a/x", "A/X"], tmp_path)
    assert system.names_trouble(["é", "e\u0301"], tmp_path)  # composed, and not
    assert system.names_trouble(["a/x", "b/x"], tmp_path) is None
    monkeypatch.setattr(system, "ignores_case", lambda folder: False)
    assert system.names_trouble(["a/x", "A/X"], tmp_path) is None


def test_a_dataset_whose_files_differ_by_case_is_refused_where_case_does_not_count(
    static_bundle, tmp_path, monkeypatch
):
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "A.csv").write_text("text\na river\n", encoding="utf-8")
    (source / "a.csv").write_text("text\na town\n", encoding="utf-8")
    if system.ignores_case(source):
        pytest.skip("this file system cannot have both files")
    config = DatasetConfig(str(static_bundle), str(source), str(output))
    assert encode_dataset(config).blocks == 2
    shutil.rmtree(output)
    monkeypatch.setattr(system, "ignores_case", lambda folder: True)
    with pytest.raises(DataError, match=r"'A.csv-00000.parquet' and 'a.csv-00000.parquet' are the"):
        encode_dataset(config)
    (source / "a.csv").rename(source / f"{LONG[:235]}.csv")
    with pytest.raises(DataError, match="has 253 bytes"):
        encode_dataset(config)
    assert not output.exists()


@pytest.fixture(scope="session")
def locales(tmp_path_factory):
    """A folder with a locale whose letters are those of western Europe alone, as on Windows."""
    folder = tmp_path_factory.mktemp("locales")
    line = ["localedef", "-i", "en_US", "-f", "CP1252", folder / "en_US.CP1252"]
    if shutil.which("localedef") is None or subprocess.run(line, check=False).returncode:
        pytest.skip("localedef cannot make a locale of cp1252: apt-get install locales")
    return {"LOCPATH": str(folder), "LC_ALL": "en_US.CP1252"}


@pytest.mark.parametrize("locale", ["cp1252", "C"])
def test_texts_are_utf_8_in_every_locale(static_bundle, tmp_path, locale, request):
    chosen = {"LC_ALL": "C"} if locale == "C" else request.getfixturevalue("locales")
    environment = os.environ | chosen | {
        "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONPATH": str(TESTS / "support" / "elsewhere"),
    }  # fmt: skip

    def run(*line, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "mirror_rt.cli", *map(str, line)], env=environment, check=False,
            capture_output=True, encoding="utf-8", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    texts = ["a river", "река", "人生"]
    rows = [json.dumps({"id": text, "text": text}, ensure_ascii=False) + "\n" for text in texts]
    (tmp_path / "in.jsonl").write_text("".join(rows), encoding="utf-8")
    bundle = shutil.copytree(static_bundle, tmp_path / "bundle")
    manifest = json.loads((bundle / "mirror.json").read_text(encoding="utf-8"))
    changed = json.dumps(manifest | {"prompts": {"query": "запрос: "}}, ensure_ascii=False)
    (bundle / "mirror.json").write_text(changed, encoding="utf-8")
    run("encode", bundle, "--input", "in.jsonl", "--id-field", "id", "--output", "out.npy")
    ids = (tmp_path / "out.ids.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in ids] == texts
    assert "запрос: " in run("info", bundle).stdout
    refused = run("encode", bundle, "--input", "река.txt", "--output", "-", code=1)
    assert refused.stderr.endswith(".txt: no such file\n")


def test_a_mac_counts_its_fast_processors(monkeypatch):
    class Library:
        def __init__(self, name):
            assert name is None

        def sysctlbyname(self, name, value, size, new, length):
            if name != known:
                return -1
            value._obj.value = 4
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    known = b"hw.perflevel0.physicalcpu"
    assert system.processors() == 4
    known = None
    assert system.processors() == 10


def test_windows_has_one_worker(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="1 on Windows, where no two processes share a port"):
        ListenConfig(workers=2)
