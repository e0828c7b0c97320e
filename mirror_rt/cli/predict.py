"""Run `mirror-rt predict`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from mirror_rt.cli.common import progress
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.readers.tables import find_column, numbered_lines, read_any_table
from mirror_rt.evaluation.similarity import find_text_columns
from mirror_rt.heads.predictor import Predictor, class_of, score_predictions
from mirror_rt.heads.task_heads import Predictions, TaskHead
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.atomic import check_free, new_file
from mirror_rt.io.text import Table, iter_jsonl
from mirror_rt.pipeline.options import EncodeOptions
from mirror_rt.progress import progress_bar

# All other options of `encode` change the vectors, and the heads were trained on unchanged ones.
OF_PREDICT = ("batch_size", "on_too_long", "errors")

_WINDOW = 1024  # number of rows that are encoded together
_TEXT_FIELDS = ("text", "sentence")

# A text or a pair of texts, and the cell of its label (None if no label is asked for).
_Row = tuple[Any, str | None]


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "predict",
        description="Apply a task head of a bundle (see 'mirror-rt train multitask' and 'burt') to "
        "texts or pairs of\ntexts. Writes a JSON line a row: its label and what it comes from;\n"
        "with --label-field also how many are right, beside always saying the most frequent label.",
        examples="""
mirror-rt predict bundle --head sentiment --input reviews.txt
mirror-rt predict bundle --head paraphrase --input pairs.tsv --fields question1,question2
mirror-rt predict bundle --head similarity --input sts-dev.csv --label-field similarity
printf 'A fine film.\\n' | mirror-rt predict bundle --head sentiment --input -
""",
    )
    add_model(parser)
    parser.add_argument("--head", metavar="NAME", help="needed where the bundle has several")
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help="FILE.jsonl; FILE.csv or FILE.tsv with a header; another name, or - for standard "
        "input, for lines: a text, or two with a tab between them",
    )
    parser.add_argument(
        "--fields",
        metavar="NAME[,NAME]",
        help="columns of the text, or of the two texts (default: text or sentence; for pairs "
        "sentence1,sentence2 and other usual names)",
    )
    parser.add_argument(
        "--label-field", metavar="NAME", help="column of the right label or value, to compare with"
    )
    parser.add_argument(
        "--output", default="-", metavar="FILE.jsonl", help="default: standard output"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    add_options(parser.add_argument_group("vectors"), EncodeOptions, only=OF_PREDICT)
    add_options(parser.add_argument_group("model"), LoadOptions)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.output != "-":
        check_free(Path(arguments.output), overwrite=arguments.overwrite)
    load = build(LoadOptions, from_arguments(arguments))
    predictor = Predictor.load(arguments.model, **load.keywords())
    head = predictor.heads.get(arguments.head)
    rows = _rows(arguments, head)
    with _output(arguments) as file:
        targets, parts = _predict_windows(predictor, head, rows, file, arguments)
    if not parts:
        raise DataError(f"{arguments.input} holds no rows")
    if arguments.quiet and not arguments.label_field:
        return
    print(_summary(head, _joined(parts), targets, arguments), file=sys.stderr)


def _predict_windows(
    predictor: Predictor,
    head: TaskHead,
    rows: Iterator[_Row],
    file: IO[bytes],
    arguments: argparse.Namespace,
) -> tuple[list[float | None], list[Predictions]]:
    """Write the predictions of all rows; return targets (None if blank) and predictions."""
    options = asdict(build(EncodeOptions, from_arguments(arguments)))
    options = {name: options[name] for name in OF_PREDICT}
    targets: list[float | None] = []
    parts: list[Predictions] = []
    bar = progress_bar(None, progress(arguments), unit="row", desc="predict")
    with contextlib.closing(bar):
        while window := list(itertools.islice(rows, _WINDOW)):
            found = predictor.predict(head.name, [row for row, _ in window], **options)
            for i in range(len(window)):
                record = {"id": len(targets) + i} | _described(head, found, i)
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            start = len(targets)
            targets += [_target(head, cell, start + i) for i, (_, cell) in enumerate(window)]
            parts.append(found)
            bar.update(len(window))
    return targets, parts


def _described(head: TaskHead, found: Predictions, row: int) -> dict[str, Any]:
    scores = found.scores[row]
    if head.scale is not None:
        return {"value": _number(scores)}
    if scores.ndim == 0:
        return {"label": found.labels[row], "similarity": _number(scores)}
    named = {label: _number(score) for label, score in zip(head.labels, scores, strict=True)}
    return {"label": found.labels[row], "scores": named}


def _number(value: np.float64) -> float | None:
    return None if math.isnan(value) else round(float(value), 6)


def _joined(parts: list[Predictions]) -> Predictions:
    labels = [label for part in parts for label in part.labels]
    return Predictions(labels, np.concatenate([part.scores for part in parts]))


def _summary(
    head: TaskHead, found: Predictions, targets: list[float | None], arguments: argparse.Namespace
) -> str:
    text = f"{arguments.output}: {len(targets)} rows by the head {head.name}"
    if not arguments.label_field:
        return text
    usable = [not np.isnan(row).any() for row in found.scores]
    kept = [i for i, target in enumerate(targets) if target is not None and usable[i]]
    if len(kept) < 2:
        raise DataError(f"{arguments.input}: fewer than two rows have a label and a usable text")
    of_kept = Predictions([found.labels[i] for i in kept], found.scores[kept])
    scored = score_predictions(head, of_kept, [targets[i] for i in kept])  # type: ignore[arg-type]
    values = ", ".join(
        f"{name} {'undefined' if value is None else f'{value:.4f}'}"
        for name, value in scored.items()
    )
    return f"{text}; over {len(kept)} with a label: {values}"


def _target(head: TaskHead, cell: str | None, row: int) -> float | None:
    """Return what a label's cell says: the number of a class, or a value; None for a blank cell."""
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


@contextlib.contextmanager
def _output(arguments: argparse.Namespace) -> Iterator[IO[bytes]]:
    if arguments.output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with new_file(Path(arguments.output), overwrite=arguments.overwrite) as file:
        yield file


def _rows(arguments: argparse.Namespace, head: TaskHead) -> Iterator[_Row]:
    path, label = arguments.input, arguments.label_field
    fields = arguments.fields.split(",") if arguments.fields else None
    count = 2 if head.takes_pairs else 1
    if fields is not None and len(fields) != count:
        raise ConfigError(
            f"--fields {arguments.fields}: the head {head.name!r} takes {count} "
            f"text{'s' if count > 1 else ''}"
        )
    suffix = Path(path).suffix
    if suffix == ".jsonl":
        names = fields or (["sentence1", "sentence2"] if count == 2 else ["text"])
        records = iter_jsonl(path, *names, *([label] if label else []))
        return ((_item(r[:count]), str(r[count]) if label else None) for r in records)
    if suffix in (".csv", ".tsv"):
        return _table_rows(read_any_table(Path(path)), fields, label, count)
    if fields is not None or label is not None:
        raise ConfigError(f"--fields and --label-field need columns: {path} has lines")
    return ((_item(_cells(path, n, line, count)), None) for n, line in numbered_lines(path))


def _table_rows(
    table: Table, fields: list[str] | None, label: str | None, count: int
) -> Iterator[_Row]:
    if fields is not None:
        names = tuple(fields)
    elif count == 1:
        names = (find_column(table, _TEXT_FIELDS, "texts (see --fields)"),)
    else:
        names = find_text_columns(table, label or "score")
    columns = [table.column(name) for name in names]
    cells: list[str | None] = [None] * len(table.rows)
    if label is not None:
        cells = [*table.column(label)]
    return zip(map(_item, zip(*columns, strict=True)), cells, strict=True)


def _cells(path: str, number: int, line: str, count: int) -> tuple[str, ...]:
    cells = tuple(line.split("\t")) if count == 2 else (line,)
    if len(cells) != count:
        raise DataError(
            f"{path}, line {number}: {len(cells)} cells, expected two texts with a tab between"
        )
    return cells


def _item(cells: tuple[Any, ...]) -> Any:
    return cells[0] if len(cells) == 1 else cells
