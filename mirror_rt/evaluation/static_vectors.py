"""Read static word vectors, and encode a text as the mean of its words' vectors.

The papers' rows for fastText and GloVe are made in this way (BURT, section 4.1). The formats are
those that gensim reads: text with a header (`.vec`), text without one (GloVe's `.txt`), and the
binary format of word2vec (`.bin`).
"""

from __future__ import annotations

import logging
import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_rt.io.text import iter_lines
from mirror_rt.vectors.normalization import normalize_rows

logger = logging.getLogger(__name__)

Vector = npt.NDArray[np.float32]

_SUFFIXES = (".vec", ".txt", ".bin")
_FASTTEXT = (793712314).to_bytes(4, "little")  # how a model of fastText begins
_WORDS = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


def is_static(path: Path) -> bool:
    """Tell whether a path names a file of word vectors, by its suffix (also before `.gz`)."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(_SUFFIXES) and not path.is_dir()


class StaticVectors:
    """An encoder that averages word vectors; words without one do not count.

    A word is looked up as it is written and then in lower case; a text is looked up as a whole
    first, with spaces or `_` between its words. A text none of whose words is known has the vector
    0, whose cosine with any other is 0; a warning counts such texts.
    """

    mask_token = None

    def __init__(self, words: dict[str, int], vectors: Vector) -> None:
        self._rows, self._vectors = words, vectors

    @classmethod
    def read(cls, path: Path) -> StaticVectors:
        """Read a file of word vectors; of a word that occurs again, the first vector counts."""
        rows: dict[str, int] = {}
        vectors: list[Vector] = []
        for word, vector in _binary(path) if path.suffix.lower() == ".bin" else _text(path):
            if rows.setdefault(word, len(vectors)) == len(vectors):
                vectors.append(vector)
        if not vectors:
            raise DataError(f"{path} has no word vectors")
        return cls(rows, np.stack(vectors))

    def encode(
        self,
        inputs: list[str],
        *,
        normalize_embeddings: bool = True,
        show_progress_bar: bool | None = None,
    ) -> Vector:
        """Encode texts to float32 [n, D], of unit length or as averaged."""
        found = np.zeros((len(inputs), self._vectors.shape[1]), dtype=np.float32)
        unknown = 0
        for i, text in enumerate(inputs):
            if rows := self._known(text):
                found[i] = self._vectors[rows].mean(axis=0, dtype=np.float64)
            unknown += not rows
        if unknown:
            logger.warning("%d of %d texts have no known word", unknown, len(inputs))
        return normalize_rows(found) if normalize_embeddings else found

    def _known(self, text: str) -> list[int]:
        whole = self._first((text, text.replace(" ", "_"), text.lower()))
        if whole is not None:
            return [whole]
        rows = (self._first((word, word.lower())) for word in _WORDS.findall(text))
        return [row for row in rows if row is not None]

    def _first(self, spellings: Iterable[str]) -> int | None:
        return next((self._rows[word] for word in spellings if word in self._rows), None)


def _text(path: Path) -> Iterator[tuple[str, Vector]]:
    """Yield the words and vectors of a text file, whose first line may say how many there are."""
    size, number, said = 0, 0, None
    for number, line in enumerate(iter_lines(path), 1):
        cells = line.rstrip(" ").split(" ")
        if number == 1 and len(cells) == 2:
            if not all(cell.isdecimal() and len(cell) < 19 for cell in cells) or cells[1] == "0":
                raise DataError(f"{path}, line 1: expected the numbers of words and of dimensions")
            said, size = int(cells[0]), int(cells[1])
            continue
        if said is not None and number > said + 1:
            break  # as gensim does
        size = size or len(cells) - 1
        # Some of GloVe's words have spaces in them, so the numbers are counted from the end.
        word, numbers = " ".join(cells[:-size]), cells[len(cells) - size :]
        try:
            with np.errstate(over="ignore"):  # of a number that float32 cannot hold: refused below
                vector = np.array(numbers, dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if size < 1 or len(cells) <= size or not np.isfinite(vector).all() or not len(vector):
            raise DataError(f"{path}, line {number}: expected a word and {size or 'its'} numbers")
        yield word, vector
    if said is not None and number - 1 < said:
        raise DataError(f"{path} has {number - 1:,} words, its first line says {said:,}")


def _binary(path: Path) -> Iterator[tuple[str, Vector]]:
    """Yield the words and vectors of word2vec's binary format: WORD, space, float32 [D]."""
    if not path.is_file() or not path.stat().st_size:
        raise DataError(f"{path}: no such file, or an empty one")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] == _FASTTEXT:
            raise DataError(f"{path} is a model of fastText: take its word vectors, a .vec file")
        header = re.match(rb"(\d+) (\d+)\n", data[:64])
        if header is None:
            raise DataError(f"{path} is not word2vec's binary format: expected two numbers first")
        count, size = map(int, header.groups())
        if size == 0:
            raise DataError(f"{path} has vectors of 0 numbers")
        place = header.end()
        for _ in range(count):
            space = data.find(b" ", place)
            end = space + 1 + 4 * size
            if space < 0 or end > len(data):
                raise DataError(f"{path} ends before its {count} words")
            try:
                word = data[place:space].lstrip(b"\n").decode()
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: a word at byte {place} is not UTF-8") from error
            vector = np.frombuffer(data[space + 1 : end], dtype="<f4")
            if not np.isfinite(vector).all():
                raise DataError(f"{path}: the vector of {word[:60]!r} is not finite")
            yield word, vector
            place = end
