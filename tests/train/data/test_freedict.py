"""FreeDict's dictionaries in dictd's format."""

import gzip

import pytest

from mirror_rt import DataError
from mirror_train.data.freedict import _DIGITS, installed_dictionaries, read_freedict

ENTRIES = {
    "00databaseinfo": "00-database-info\nEnglish-French FreeDict Dictionary\n",
    "house": "house /haus/ <n>\n1. maison <fem>, demeure\na building\n2. Chambre\n",
    "Water": "Water /wɔːtər/\neau\n",
    "zxqvy": "zxqvy\nmaison\n",
    "table": "table\ntable\n",
}


def digits(number):
    return (digits(number // 64) if number > 63 else "") + _DIGITS[number % 64]


def write(folder, name="freedict-eng-fra", *, packed=True):
    body, lines = b"", []
    for word, entry in ENTRIES.items():
        raw = entry.encode()
        lines.append(f"{word}\t{digits(len(body))}\t{digits(len(raw))}\n")
        body += raw
    (folder / f"{name}.index").write_text("".join(lines), encoding="utf-8")
    if packed:
        (folder / f"{name}.dict.dz").write_bytes(gzip.compress(body))
    return folder / f"{name}.index"


def test_frequent_words_and_their_first_translations(tmp_path):
    entries = read_freedict(write(tmp_path), ("en", "fr"))
    assert entries == [("house", "maison"), ("house", "demeure"), ("water", "eau")]


def test_rarer_words_where_a_dictionary_is_small(tmp_path, monkeypatch):
    path = write(tmp_path)
    monkeypatch.setattr("mirror_train.data.freedict.TOPS", (1000, 50_000))
    assert ("house", "demeure") in read_freedict(path, ("en", "fr"))
    monkeypatch.setattr("mirror_train.data.freedict.FEWEST", 2)
    entries = read_freedict(path, ("en", "fr"))
    assert entries == [("house", "maison"), ("house", "chambre"), ("water", "eau")]


def test_installed_between_the_languages_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRROR_RT_DICTIONARIES", str(tmp_path))
    path = write(tmp_path)
    write(tmp_path, "freedict-eng-swh")
    assert installed_dictionaries(["en", "fr"])["en-fr"] == path
    assert "en-sw" not in installed_dictionaries(["en", "fr"])


def test_what_is_no_dictionary_is_refused(tmp_path):
    path = write(tmp_path, packed=False)
    with pytest.raises(DataError, match="cannot be read"):
        read_freedict(path, ("en", "fr"))
    path = write(tmp_path)
    path.write_text("house\t?\n")
    with pytest.raises(DataError, match="line 1: expected WORD, offset and length"):
        read_freedict(path, ("en", "fr"))
