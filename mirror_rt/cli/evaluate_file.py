"""Run `mirror-rt evaluate similarity` and `mirror-rt evaluate geometry`: a model and one file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mirror_rt.cli.common import LoadingOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Group, Help
from mirror_rt.errors import DataError, require
from mirror_rt.evaluation import evaluate_geometry, read_scored_pairs, spearman
from mirror_rt.evaluation.plots import plot_grades
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.io.atomic import check_free, new_file
from mirror_rt.io.rows import read_texts
from mirror_rt.io.tables import text_fields


@dataclass(frozen=True, kw_only=True)
class _OfOneFile(Invocation):
    """The options that both commands have."""

    model: Annotated[
        str,
        Help("bundle, Hugging Face folder or name, also as NAME:POOLING, or a file of word vectors "
             "(.vec, .txt, .bin)", "M", word=True),
    ]  # fmt: skip
    loading: Annotated[LoadingOptions, Group()]
    json: Annotated[bool, Help("JSON instead of a table")] = False

    def _print(self, values: dict[str, Any]) -> None:
        if self.json:
            print(json.dumps(values | {"model": self.model}))
            return
        rows = [(name.replace("_", " "), _number(value)) for name, value in values.items()]
        print(text_fields(rows))


@dataclass(frozen=True, kw_only=True)
class Similarity(_OfOneFile):
    """Spearman's rho between the cosines of pairs and their human scores.

    Examples:
        mirror-rt evaluate similarity bundle --pairs pairs.tsv
        mirror-rt evaluate similarity tuned --pairs pairs.tsv --cosines cosines.tsv
        mirror-rt evaluate similarity tuned --pairs pairs.tsv --plot cosines.png
    """

    pairs: Annotated[
        Path,
        Help("a header, two text columns (text1 text2, sentence1 sentence2, word1 word2) and "
             "score"),
    ]  # fmt: skip
    cosines: Annotated[
        Path | None, Help("write each pair with its score and its cosine", "FILE.tsv")
    ] = None
    plot: Annotated[
        Path | None, Help("draw the cosines of the pairs of each score, rounded", "FILE.png")
    ] = None

    def run(self) -> None:
        pairs = read_scored_pairs(self.pairs)
        if len(pairs.scores) < 2:
            raise DataError(f"{self.pairs} has 1 pair, and Spearman's rho needs at least 2")
        for path in filter(None, (self.cosines, self.plot)):
            check_free(path, overwrite=False)
        if self.plot is not None:
            require("matplotlib", extra="demo", purpose="--plot")
        found = cosines(self.loading.load_evaluated(self.model), pairs.first, pairs.second)
        if self.cosines is not None:
            columns = (pairs.first, pairs.second, pairs.scores.tolist(), found.tolist())
            rows = [
                f"{a}\t{b}\t{score:g}\t{one:.6f}\n"
                for a, b, score, one in zip(*columns, strict=True)
            ]
            with new_file(self.cosines, overwrite=False) as file:
                file.write("".join(["text1\ttext2\tscore\tcosine\n", *rows]).encode())
        if self.plot is not None:
            grades = np.rint(pairs.scores)
            of_grade = {f"{one:g}": found[grades == one] for one in np.unique(grades)}
            plot_grades(self.plot, {self.model: of_grade}, title=f"{self.pairs.name}, by score")
        self._print({"spearman": spearman(found, pairs.scores), "n": len(pairs.scores)})


@dataclass(frozen=True, kw_only=True)
class Geometry(_OfOneFile):
    """Measures of how a model's vectors lie in their space.

    Isotropy score (Mirror-BERT, Eq. 2), mean-vector norm (Eq. 3), alignment and uniformity (Wang
    and Isola 2020), mean cosine of random pairs.

    Examples:
        mirror-rt evaluate geometry bundle --texts texts.txt
    """

    texts: Annotated[Path, Help("UTF-8, one text a line; blank lines are left out")]

    def run(self) -> None:
        texts = read_texts(self.texts)
        model = self.loading.load_evaluated(self.model)
        self._print(dataclasses.asdict(evaluate_geometry(model, texts)))


def _number(value: float | None) -> str:
    if value is None:
        return "undefined"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
