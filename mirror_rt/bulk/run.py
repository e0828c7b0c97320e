"""Run one bulk job, from a file to a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from mirror_rt.bulk.job import JobFolder, open_job
from mirror_rt.bulk.lines import WINDOW_TEXTS, given_options, open_lines
from mirror_rt.bulk.options import BulkConfig, texts_named_in
from mirror_rt.bulk.plan import file_plan, find_bundle, window_characters
from mirror_rt.bulk.progress import JobReport, Progress, told_how_to_resume
from mirror_rt.bulk.reading import count_records, iter_records, record_windows
from mirror_rt.bulk.workers import EncoderSpec, encode_windows
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.model_kinds import DENSE, LATE, WORDS
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.io.vectors import JsonlSink, invalid_rows, open_sink, output_files
from mirror_rt.pipeline.options import FLOATS
from mirror_rt.pipeline.results import EncodedTexts, RowCounts
from mirror_rt.tokens.windows import TextWindow, with_results
from mirror_rt.vectors.quantization import Embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkReport(JobReport):
    """Report the outcome of a job; see `JobReport`.

    Attributes:
        dimension: length of a row.
        dtype: type of a row's numbers.
    """

    dimension: int
    dtype: str


def encode_file(config: BulkConfig) -> BulkReport:
    """Encode every text of a file.

    The output appears only when it is complete. From a file to a file, finished windows are kept in
    OUTPUT.partial in the meantime: with `resume`, a killed job goes on and writes the same bytes.

    Raises:
        ConfigError: an option has an unusable value.
        DataError: the input cannot be used, or has changed since the job was begun.
        InvalidTextError: a text cannot be encoded, and `errors` is `raise`.
        OutputExistsError: the output, or an unfinished job, exists.
        BundleError, ProviderError: as `Encoder.load`.
        ProcessGroupError: one of several processes ended unexpectedly.
    """
    if config.resume and not config.is_resumable:
        raise ConfigError("--resume needs an input file and an output file, not streams")
    if config.output != "-":
        output_files(Path(config.output), with_ids=config.id_field is not None)
    options = config.options
    if (
        options.errors == "zero" and options.precision in FLOATS
    ):  # zeros take the place of NaN at the end
        options = replace(options, errors="nan")
    described = find_bundle(config.model, config.load, (DENSE, WORDS, LATE))
    given = given_options(config, described)
    if described.bundle.kind is not DENSE:
        return _encode_to_lines(config, described, given)
    spec = EncoderSpec.of(described, config.load, options)
    if not config.is_resumable:
        return _encode_once(config, spec)
    return _encode_resumable(config, spec, described)


def _encode_once(config: BulkConfig, spec: EncoderSpec) -> BulkReport:
    """Encode from or to a stream, which cannot be resumed."""
    with_ids = config.id_field is not None
    with (
        open_sink(config.output, overwrite=config.overwrite, with_ids=with_ids) as sink,
        _progress(config, 0) as progress,
    ):
        counts = RowCounts()
        for window, encoded in _encoded(config, spec, progress, skip=0):
            counts += RowCounts.of(window, encoded)
            sink.write(_written(config, encoded.embeddings), window.ids)
        _check_texts(config, counts)
    return BulkReport(counts=counts, **sink.summary, resumed=0, **progress.spent())


def _encode_to_lines(
    config: BulkConfig, described: ModelDescription, given: dict[str, Any]
) -> BulkReport:
    """Encode with a model that gives no vector of a text, with the options that were given."""
    strict, with_ids = config.options.errors == "raise", config.id_field is not None
    rows = iter_records(config.input, config.text_field, config.id_field, strict=strict)
    most = window_characters(described, config.load)
    stream = record_windows(rows, min(config.window, WINDOW_TEXTS), most)
    with (
        open_sink(config.output, overwrite=config.overwrite, with_ids=with_ids) as sink,
        open_lines(config, described, given) as (encode, dimension),
        _progress(config, 0) as progress,
        texts_named_in(config.input),
    ):
        assert isinstance(sink, JsonlSink)
        counts = RowCounts()
        progress.use(progress.counter)  # the time of loading does not count
        for window, found in with_results(stream, encode):
            counts += RowCounts.of_invalid(window)
            sink.write_fields(found, window.ids)
            progress.counter.add_texts(len(found))
        _check_texts(config, counts)
    dtype = config.options.precision
    spent = progress.spent()
    return BulkReport(counts=counts, dimension=dimension, dtype=dtype, resumed=0, **spent)


def _written(config: BulkConfig, vectors: Embeddings) -> Embeddings:
    """Put zeros in the place of NaN where these are asked for."""
    if config.options.errors == "zero":
        vectors[invalid_rows(vectors)] = 0
    return vectors


def _check_texts(config: BulkConfig, counts: RowCounts) -> None:
    """Raise a DataError for an input that has no text at all."""
    if counts.rows == 0:
        raise DataError(f"{config.input} holds no texts")
    if counts.vectors == 0:
        raise DataError(
            f"{config.input}: none of its {counts.rows} rows has a text that can be encoded; is "
            f"{config.text_field!r} the field or column of the texts (--text-field)?"
        )


def _encode_resumable(
    config: BulkConfig, spec: EncoderSpec, described: ModelDescription
) -> BulkReport:
    path = Path(config.input)
    before = path.stat()
    with open_job(
        Path(config.output),
        file_plan(config, described, spec.digest),
        with_ids=config.id_field is not None,
        resume=config.resume,
        overwrite=config.overwrite,
    ) as job:
        resumed = job.counts.rows

        def saved() -> str:
            return f"{job.counts.rows} texts are saved in {job.folder}" if job.counts.rows else ""

        with _progress(config, resumed) as progress, told_how_to_resume(saved):
            if not job.is_complete:
                _encode_rest(config, spec, job, progress)
                now = path.stat()
                if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                    raise DataError(
                        f"{path} was changed while it was read: encode it again, with --overwrite"
                    )
                job.assemble(partial(_written, config))
        made = job.publish()
    counts = RowCounts(**made.pop("counts"))
    return BulkReport(counts=counts, **made, resumed=resumed, **progress.spent())


def _encode_rest(config: BulkConfig, spec: EncoderSpec, job: JobFolder, progress: Progress) -> None:
    """Encode the windows that the job has not finished."""
    if config.options.errors == "raise" and job.counts.invalid:
        raise DataError(
            f"{job.folder} has rows without a vector: {job.counts}; go on with --errors nan or "
            "zero, or start anew with --overwrite"
        )
    for window, encoded in _encoded(config, spec, progress, skip=job.parts):
        if window.start != job.counts.rows:
            raise DataError(
                f"{job.folder} has {job.counts.rows} rows of {window.start}: start anew with "
                "--overwrite"
            )
        job.save(encoded.embeddings, window.ids, RowCounts.of(window, encoded))
    _check_texts(config, job.counts)


def _encoded(
    config: BulkConfig, spec: EncoderSpec, progress: Progress, *, skip: int
) -> Iterator[tuple[TextWindow, EncodedTexts]]:
    """Yield the windows of the input, but for the first `skip`, with their vectors."""
    strict = config.options.errors == "raise"
    rows = iter_records(config.input, config.text_field, config.id_field, strict=strict)
    stream = record_windows(rows, config.window, spec.characters)
    encode = partial(encode_windows, spec, processes=config.processes, report_counter=progress.use)
    with texts_named_in(config.input):
        yield from with_results(islice(stream, skip, None), encode)


def _progress(config: BulkConfig, done: int) -> Progress:
    # Counting reads the whole file once more, so it happens only if a bar is shown.
    counted = config.show_progress_bar and Path(config.input).is_file()
    total = count_records(config.input) if counted else None
    return Progress(config.show_progress_bar, total, done)
