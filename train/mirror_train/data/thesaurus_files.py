"""Read thesauri: MyThes files (LibreOffice), the files of WordNet, and TSV files of synonyms."""

from __future__ import annotations

import codecs
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import read_rows
from mirror_rt.io.limits import ALL_SYNONYMS, SYNONYMS

# A word, in lower case, and for each of its senses the words that are listed as synonyms.
Senses = dict[str, list[set[str]]]

_WORDNET = ("data.noun", "data.verb", "data.adj", "data.adv")
# Relations other than synonymy that MyThes files name in the place of the part of speech.
_OTHER_RELATION = re.compile(r"ant[oó]n[iy]m|\bterm\b|антон[иі]м|термин", re.IGNORECASE)
# Vowel signs of Hebrew and Arabic, which thesauri write and texts leave out, and tatweel.
_OPTIONAL = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]"
)
# Python's own, in which no file is written; some take the square of its size.
_NO_ENCODINGS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined")
_MARKER = re.compile(r"\((?:a|p|ip)\)$")  # where an adjective of WordNet may stand


@dataclass(frozen=True, slots=True)
class Thesaurus:
    """The entries of a thesaurus."""

    senses: Senses  # for each word the synonyms that each of its senses lists; all in lower case
    form: str  # mythes, wordnet or tsv
    sha256: str  # hash of the file, or of all files of WordNet in their order


def read_thesaurus(path: Path) -> Thesaurus:
    """Read a MyThes file (`.dat`), a folder with the files of WordNet, or a TSV file.

    Only synonyms are kept: in MyThes files, words with a remark in brackets are left out, because
    the remark may say that they are antonyms or more general terms. A line of a TSV file is a set
    of words, each a synonym of the others.
    """
    if path.is_dir():
        files, form, read = _wordnet_files(path), "wordnet", _read_wordnet
    elif path.suffix == ".dat":
        files, form, read = [path], "mythes", _read_mythes
    elif path.suffix in (".tsv", ".txt"):
        files, form, read = [path], "tsv", _read_tsv
    else:
        raise DataError(
            f"{path} is no thesaurus: expected a MyThes file (.dat), a folder with the files of "
            "WordNet (data.noun ...), or a table of synonyms (.tsv)"
        )
    digest = hashlib.sha256()
    senses: Senses = {}
    left = ALL_SYNONYMS
    for file in files:
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}") from error
        digest.update(raw)
        for word, listed in read(file, raw):
            if len(listed) > SYNONYMS:
                raise DataError(
                    f"{file}: a sense of {word[:60]!r} lists {len(listed):,} words, expected at "
                    f"most {SYNONYMS:,}"
                )
            if (left := left - len(listed)) < 0:
                raise DataError(f"{file} has more than {ALL_SYNONYMS:,} synonyms")
            senses.setdefault(word, []).append(listed - {word})
    return Thesaurus(senses, form, digest.hexdigest())


def _wordnet_files(folder: Path) -> list[Path]:
    files = [folder / name for name in _WORDNET if (folder / name).is_file()]
    if not files:
        raise DataError(f"{folder} has none of the files of WordNet: {', '.join(_WORDNET)}")
    return files


def _read_mythes(path: Path, raw: bytes) -> Iterator[tuple[str, set[str]]]:
    """Yield the headword and the synonyms of each sense.

    The first line names the encoding. An entry is `word|n` and n lines `(part of speech)|word ...`,
    some of which list no word.
    """
    lines = _decoded(path, raw)
    numbered = enumerate(lines, 2)
    for number, line in numbered:
        if not line.strip():
            continue
        match = re.fullmatch(r"(.*)\|\s*(\d{1,6})\s*", line)
        if match is None:
            raise DataError(f"{path}, line {number}: expected WORD|NUMBER, got {line[:60]!r}")
        word, count = match.groups()
        for _ in range(int(count)):
            number, line = next(numbered, (number + 1, ""))
            part, *listed = line.split("|")
            if not line.strip():
                raise DataError(
                    f"{path}, line {number}: expected (PART OF SPEECH)|SYNONYM ..., one of {count} "
                    f"such lines of {word!r}, got {line[:60]!r}"
                )
            if not _OTHER_RELATION.search(part):
                yield _plain(word), _plain_set(one for one in listed if "(" not in one)


def _decoded(path: Path, raw: bytes) -> list[str]:
    """Return the lines after the first, decoded as the first line says."""
    head, _, body = raw.removeprefix(codecs.BOM_UTF8).partition(b"\n")
    encoding = head.decode("ascii", "replace").strip()
    try:
        name = codecs.lookup(encoding.removeprefix("microsoft-")).name
        if name in _NO_ENCODINGS:
            raise LookupError(name)
        return body.decode(name).split("\n")
    except UnicodeError as error:
        line = body.count(b"\n", 0, getattr(error, "start", 0)) + 2
        raise DataError(
            f"{path}, line {line}: not {encoding}, which its first line says"
        ) from error
    except (LookupError, ValueError) as error:  # a NUL in the name
        raise DataError(
            f"{path}: the first line of a MyThes file names its encoding, got {encoding[:60]!r}"
        ) from error


def _read_wordnet(path: Path, raw: bytes) -> Iterator[tuple[str, set[str]]]:
    """Yield each word of each synset with the whole synset (man 5 wndb)."""
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if line.startswith("  "):  # the licence
            continue
        cells = line.split(" ")
        try:
            listed = cells[4 : 4 + 2 * int(cells[3], 16) : 2]
        except (IndexError, ValueError) as error:
            raise DataError(f"{path}, line {number}: not a synset: {line[:60]!r}") from error
        synset = _plain_set(_MARKER.sub("", one).replace("_", " ") for one in listed)
        for word in synset:
            yield word, synset


def _read_tsv(path: Path, raw: bytes) -> Iterator[tuple[str, set[str]]]:
    for _, cells in read_rows(path, cells=2):
        words = _plain_set(cells)
        for word in words:
            yield word, words


def _plain(word: str) -> str:
    return _OPTIONAL.sub("", unicodedata.normalize("NFC", word)).strip().lower()


def _plain_set(words: Iterable[str]) -> set[str]:
    return {plain for word in words if (plain := _plain(word))}
