"""Dictionaries, thesauri and recipes of somebody else's: read or refused, in bounded time."""

import contextlib
import gzip
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_rt.errors import ConfigError, DataError, MirrorError
from mirror_rt.io import limits
from mirror_train.data.freedict import read_freedict
from mirror_train.data.labelled_readers import read_labelled
from mirror_train.data.thesaurus_files import read_thesaurus
from mirror_train.recipes.recipe import load_recipe

LANGUAGES = ("en", "fr")


def number(value):
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    found = digits[value % 64]
    while value := value // 64:
        found = digits[value % 64] + found
    return found


def dictionary(folder, entries):
    """Write a dictionary of word -> translation, and return its index."""
    body, lines = b"", []
    for word, translation in entries.items():
        entry = f"{word}\n{translation}\n".encode()
        lines.append(f"{word}\t{number(len(body))}\t{number(len(entry))}\n")
        body += entry
    index = folder / "freedict-eng-fra.index"
    index.write_text("".join(lines))
    with gzip.open(index.with_suffix(".dict.dz"), "wb") as file:
        file.write(body)
    return index


WORDS = {"water": "eau", "house": "maison", "river": "rivière", "town": "ville"}


def test_a_packed_dictionary_without_end(tmp_path, monkeypatch):
    index = dictionary(tmp_path, WORDS)
    monkeypatch.setattr(limits, "FREE", 1 << 20)
    with gzip.open(index.with_suffix(".dict.dz"), "wb") as file:
        file.write(bytes(8 << 20))
    monkeypatch.setattr(limits, "RATIO", 2)
    with pytest.raises(DataError, match=r"dict\.dz unpacks to more than [\d,]+ bytes"):
        read_freedict(index, LANGUAGES)


def test_entries_that_share_the_whole_file(tmp_path):
    """Each word of the index has all of the file: time and memory would be their product."""
    index = dictionary(tmp_path, WORDS | {f"w{i}": "x" * 50 for i in range(100)})
    size = len(gzip.decompress(index.with_suffix(".dict.dz").read_bytes()))
    index.write_text(f"water\tA\t{number(size)}\n" * (limits.SHARED + 1))
    with pytest.raises(DataError, match=f"line {limits.SHARED + 1}: the entries up to here have"):
        read_freedict(index, LANGUAGES)


def test_numbers_without_end(tmp_path):
    index = dictionary(tmp_path, WORDS)
    index.write_text(f"water\t{'9' * 100_000}\tB\n")
    with pytest.raises(DataError, match="line 1: expected WORD, offset and length"):
        read_freedict(index, LANGUAGES)


@pytest.mark.parametrize("name", ["words.tsv", "words.dat", "wordnet"])
def test_a_sense_of_very_many_words(tmp_path, name):
    """Each would be a synonym of each."""
    words = [f"word{i}" for i in range(limits.SYNONYMS + 1)]
    path = tmp_path / name
    if name == "wordnet":
        path.mkdir()
        cells = " ".join(f"{word} 0" for word in words)
        (path / "data.noun").write_text(f"00001740 03 n {len(words):x} {cells} 000 | all\n")
    elif name == "words.dat":
        path.write_text("UTF-8\nfirst|1\n-|" + "|".join(words) + "\n")
    else:
        path.write_text("\t".join(words) + "\n")
    with pytest.raises(DataError, match="lists 1,001 words, expected at most 1,000"):
        read_thesaurus(path)


@pytest.mark.parametrize("encoding", ["punycode", "idna", "unicode_escape", "U\0TF-8", "zlib"])
def test_encodings_that_no_thesaurus_has(tmp_path, encoding):
    path = tmp_path / "words.dat"
    path.write_text(f"{encoding}\nwater|1\n-|aqua\n")
    with pytest.raises(DataError, match="names its encoding"):
        read_thesaurus(path)


def test_very_many_synonyms(tmp_path, monkeypatch):
    monkeypatch.setattr("mirror_train.data.thesaurus_files.ALL_SYNONYMS", 100)
    path = tmp_path / "words.tsv"
    path.write_text("".join(f"a{i}\tb{i}\tc{i}\n" for i in range(20)))
    with pytest.raises(DataError, match="has more than 100 synonyms"):
        read_thesaurus(path)


def test_recipes(tmp_path):
    path = tmp_path / "recipe.toml"
    for content in ("a = " + "[" * 10**5, "#" * (limits.DOCUMENT + 1), "lr = \n", "\udcff"):
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(ConfigError, match=r"recipe .*recipe\.toml"):
            load_recipe(path)


FILES = {
    "words.tsv": ("water\taqua\nhouse\thome\tdwelling\n", read_thesaurus),
    "words.dat": ("UTF-8\nwater|2\n(noun)|aqua|h2o\n(verb)|irrigate\n", read_thesaurus),
    "data.noun": (
        "00001740 03 n 02 water 0 aqua 0 001 @ 00001930 n 0000 | clear\n",
        lambda path: read_thesaurus(path.parent),
    ),
    "recipe.toml": ('extends = "word"\nbatch_size = 100\nepochs = 2\n', load_recipe),
    "labels.tsv": ("text\tlabel\na river\t1\nthe town\t0\n", read_labelled),
    "freedict-eng-fra.index": ("water\tA\tK\nhouse\tK\tN\n", lambda path: (
        path.with_suffix(".dict").write_bytes(b"water\neau\nhouse\nmaison\n"),
        read_freedict(path, LANGUAGES),
    )),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_any_change_of_any_file(tmp_path_factory, name):
    path = tmp_path_factory.mktemp("files") / name
    valid, read = FILES[name]
    content = valid.encode()
    path.write_bytes(content)
    read(path)  # as it is, it is read

    @settings(max_examples=300)
    @given(st.integers(0, 2**63))
    def check(seed):
        generator, changed = random.Random(seed), bytearray(content)
        for _ in range(generator.randint(1, 5)):
            place = generator.randrange(len(changed) + 1)
            if generator.random() < 0.5 and place < len(changed):
                changed[place] ^= 1 << generator.randrange(8)
            else:
                changed[place:place] = generator.choice([
                    b"\0", b"\n", b"\t", b"|", b"999999", b"\xff", b"[" * 40, b"-1", b"nan", b"=",
                ])  # fmt: skip
        path.write_bytes(changed)
        with contextlib.suppress(MirrorError):
            read(path)

    check()
