"""Run `mirror-rt predict`."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Annotated, Any

import numpy as np

from mirror_rt.cli.common import ModelOptions
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.cli.rows import WINDOW, OverRows, Row, read_rows, rounded, write_line
from mirror_rt.errors import DataError
from mirror_rt.heads.predictor import Predictor, class_of, score_predictions
from mirror_rt.heads.task_heads import Predictions, TaskHead
from mirror_rt.pipeline.options import EncodeOptions
from mirror_rt.progress import progress_bar

# All other options of `encode` change the vectors, and the heads were trained on unchanged ones.
OF_PREDICT = ("batch_size", "on_too_long", "errors")


@dataclass(frozen=True, kw_only=True)
class Predict(OverRows):
    r"""Apply a task head of a bundle to texts or pairs of texts.

    See 'mirror-rt train finetune' for heads. Writes a JSON line a row: its label and
    the outputs behind it; with --label-field also how many are right, beside always saying the most
    frequent label.

    Examples:
        mirror-rt predict bundle --head sentiment --input reviews.txt
        mirror-rt predict bundle --head paraphrase --input pairs.tsv --fields question1,question2
        mirror-rt predict bundle --head similarity --input sts-dev.csv --label-field similarity
        printf 'A fine film.\n' | mirror-rt predict bundle --head sentiment --input -
    """

    head: Annotated[str | None, Help("needed where the bundle has several", "NAME")] = None
    label_field: Annotated[
        str | None, Help("column of the right label or value, to compare with", "NAME")
    ] = None
    options: Annotated[Given[EncodeOptions], Group("vectors", only=OF_PREDICT)]
    load: ModelOptions

    def run(self) -> None:
        self.check_output()
        predictor = Predictor.load(self.model, **self.load.make().keywords())
        head = predictor.heads.get(self.head)
        rows = read_rows(self.input, self.fields, 2 if head.takes_pairs else 1, self.label_field)
        with self.open_output() as file:
            targets, parts = _predict_windows(predictor, head, rows, file, self)
        if not parts:
            raise DataError(f"{self.input} holds no rows")
        if self.label_field or not self.quiet:
            print(_summary(head, parts, targets, self), file=sys.stderr)


def _predict_windows(
    predictor: Predictor,
    head: TaskHead,
    rows: Iterator[Row],
    file: IO[bytes],
    call: Predict,
) -> tuple[list[float | None], list[Predictions]]:
    """Write the predictions of all rows; return targets (None if blank) and predictions."""
    options = asdict(call.options.make())
    options = {name: options[name] for name in OF_PREDICT}
    targets: list[float | None] = []
    parts: list[Predictions] = []
    bar = progress_bar(None, not call.quiet, unit="row", desc="predict")
    with contextlib.closing(bar):
        while window := list(itertools.islice(rows, WINDOW)):
            found = predictor.predict(head.name, [row for row, _ in window], **options)
            for i in range(len(window)):
                record = {"id": len(targets) + i} | _described(head, found, i)
                write_line(file, record)
            start = len(targets)
            targets += [_target(head, cell, start + i) for i, (_, cell) in enumerate(window)]
            parts.append(found)
            bar.update(len(window))
    return targets, parts


def _described(head: TaskHead, found: Predictions, row: int) -> dict[str, Any]:
    scores = found.scores[row]
    if head.scale is not None:
        return {"value": rounded(scores)}
    if scores.ndim == 0:
        return {"label": found.labels[row], "similarity": rounded(scores)}
    named = {label: rounded(score) for label, score in zip(head.labels, scores, strict=True)}
    return {"label": found.labels[row], "scores": named}


def _summary(
    head: TaskHead, parts: list[Predictions], targets: list[float | None], call: Predict
) -> str:
    text = f"{call.output}: {len(targets)} rows by the head {head.name}"
    if not call.label_field:
        return text
    labels = [label for part in parts for label in part.labels]
    scores = np.concatenate([part.scores for part in parts])
    usable = [not np.isnan(row).any() for row in scores]
    kept = [i for i, target in enumerate(targets) if target is not None and usable[i]]
    if len(kept) < 2:
        raise DataError(f"{call.input}: fewer than two rows have a label and a usable text")
    of_kept = Predictions([labels[i] for i in kept], scores[kept])
    scored = score_predictions(head, of_kept, [targets[i] for i in kept])  # type: ignore[arg-type]
    values = ", ".join(
        f"{name} {'undefined' if value is None else f'{value:.4f}'}"
        for name, value in scored.items()
    )
    return f"{text}; over {len(kept)} with a label: {values}"


def _target(head: TaskHead, cell: str | None, row: int) -> float | None:
    """Return the number of a class, or the value, in a label's cell; None for a blank cell."""
    if cell is None or cell.strip() in ("", "-"):
        return None
    if head.scale is None:
        if (number := class_of(cell, head.labels)) is None:
            raise DataError(f"row {row}: the label {cell!r} is not one of {', '.join(head.labels)}")
        return number
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(cell)):
            return value
    raise DataError(f"row {row}: the value {cell!r} is not a finite number")
