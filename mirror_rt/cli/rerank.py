"""Run `mirror-rt rerank`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Annotated, Any

from mirror_rt.cli.common import ModelOptions
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.cli.rows import WINDOW, OverRows, Row, read_rows, rounded, write_line
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.reranking.options import PredictOptions
from mirror_rt.reranking.reranker import Reranker, Scores


@dataclass(frozen=True, kw_only=True)
class Rerank(OverRows):
    r"""Score pairs of texts with a cross-encoder, or rank documents by a query.

    With --query, the input holds documents: writes a JSON line for each, the best first, with its
    row in the input (id), its score and its text. Without, it holds pairs: writes a JSON line for
    each, in their order, with its score (or a score for each label).

    Examples:
        mirror-rt rerank reranker --query 'a river in Asia' --input documents.txt --top-k 10
        mirror-rt rerank reranker --input pairs.tsv --fields question,answer --output scores.jsonl
    """

    query: Annotated[str | None, Help("rank the documents of the input by it", "TEXT")] = None
    top_k: Annotated[int | None, Help("with --query: how many of the best to write")] = None
    options: Annotated[Given[PredictOptions], Group("scores")]
    load: ModelOptions

    def run(self) -> None:
        self.check_output()
        if self.top_k is not None and self.query is None:
            raise ConfigError("--top-k goes with --query TEXT")
        options = asdict(self.options.make())
        reranker = Reranker.load(self.model, **self.load.make().keywords())
        rows = read_rows(self.input, self.fields, 1 if self.query is not None else 2)
        with self.open_output() as file:
            if self.query is not None:
                n = self._rank(reranker, [text for text, _ in rows], options, file)
            else:
                n = _score(reranker, rows, options, file)
            if not n:
                raise DataError(f"{self.input} holds no rows")
        if not self.quiet:
            print(f"{self.output}: {n} rows, {reranker.num_labels} score each", file=sys.stderr)

    def _rank(
        self, reranker: Reranker, documents: list[str], options: dict[str, Any], file: IO[bytes]
    ) -> int:
        assert self.query is not None
        ranking = reranker.rank(
            self.query, documents, top_k=self.top_k, return_documents=True,
            show_progress_bar=not self.quiet, **options,
        )  # fmt: skip
        for entry in ranking:
            score = rounded(entry["score"])
            write_line(file, {"id": entry["corpus_id"], "score": score, "text": entry["text"]})
        return len(ranking)


def _score(
    reranker: Reranker, rows: Iterator[Row], options: dict[str, Any], file: IO[bytes]
) -> int:
    """Write the scores of all pairs, window by window; return their number."""
    n = 0
    while window := [pair for pair, _ in itertools.islice(rows, WINDOW)]:
        for scores in reranker.predict(window, **options):
            write_line(file, {"id": n} | _described(reranker, scores))
            n += 1
    return n


def _described(reranker: Reranker, scores: Scores) -> dict[str, Any]:
    if reranker.num_labels == 1:
        return {"score": rounded(scores)}
    named = zip(reranker.labels, scores, strict=True)
    return {"scores": {label: rounded(score) for label, score in named}}
