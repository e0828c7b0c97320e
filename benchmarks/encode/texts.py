"""Select the texts of compare.py from the evaluation data, the same ones every time.

python benchmarks/encode/texts.py DATA short > texts.txt     # one a line
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

# Tab-separated files with a header, and the column of their sentences.
SHORT = [
    ("pairs/quora-dev.csv", "sentence1"),
    ("pairs/snli-dev.tsv", "premise"),
    ("sts/stsb-en-dev.tsv", "sentence1"),
    ("sts/sick-r-all.tsv", "sentence1"),
]
REVIEWS = ("pairs/ids-sst-train.csv", "sentence")
# The numbers of sentences of a text: most are small, some texts are long.
LENGTHS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 5, 16)


def column(path, name):
    """Return the distinct sentences of a column, sorted."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    index = rows[0].index(name)
    cells = {row[index].strip() for row in rows[1:] if len(row) == len(rows[0])}
    return sorted(cell for cell in cells if len(cell) > 2)


def select_texts(data: Path, count: int) -> dict[str, list[str]]:
    """Return `short`, sentences (questions, captions, headlines), and `mixed`, 1 to 16 of them."""
    generator = random.Random(2026)
    sentences = [text for file, name in SHORT for text in column(data / file, name)]
    generator.shuffle(sentences)
    reviews = column(data / REVIEWS[0], REVIEWS[1])
    everything = sorted(set(sentences[count:]) | set(reviews))
    generator.shuffle(everything)
    pool = iter(everything)
    mixed = [" ".join(next(pool) for _ in range(LENGTHS[i % len(LENGTHS)])) for i in range(count)]
    generator.shuffle(mixed)
    return {"mixed": mixed, "short": sentences[:count]}


if __name__ == "__main__":
    print(*select_texts(Path(sys.argv[1]), 512)[sys.argv[2]], sep="\n")
