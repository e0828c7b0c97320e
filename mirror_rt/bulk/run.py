"""Run one bulk job, from a file to a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from mirror_rt.bulk.job import JobFolder, open_job
from mirror_rt.bulk.options import BulkConfig, texts_named_in
from mirror_rt.bulk.plan import file_plan, find_bundle, window_characters
from mirror_rt.bulk.progress import Progress, told_how_to_resume
from mirror_rt.bulk.reading import count_records, iter_records, record_windows
from mirror_rt.bulk.workers import EncoderSpec, encode_windows
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.io.vectors import open_sink, output_files
from mirror_rt.tokens.windows import TextWindow, with_results
from mirror_rt.vectors.quantization import Embeddings


@dataclass(frozen=True, slots=True)
class BulkReport:
    """Report the outcome of a job.

    Attributes:
        rows: number of rows of the output.
        invalid: number of rows whose texts could not be encoded.
        dimension: length of a row.
        dtype: type of a row's numbers.
        resumed: number of rows that an earlier, interrupted run had finished.
        seconds: time spent on encoding, without loading.
        tokens: number of tokens that were run, including special tokens.
        padding: share of padding in what was run.
    """

    rows: int
    invalid: int
    dimension: int
    dtype: str
    resumed: int
    seconds: float
    tokens: int
    padding: float


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
    spec = EncoderSpec.of(find_bundle(config.model, config.load), config.load, config.options)
    return _encode_resumable(config, spec) if config.is_resumable else _encode_once(config, spec)


def _encode_once(config: BulkConfig, spec: EncoderSpec) -> BulkReport:
    """Encode from or to a stream, which cannot be resumed."""
    with_ids = config.id_field is not None
    with (
        open_sink(config.output, overwrite=config.overwrite, with_ids=with_ids) as sink,
        _progress(config, 0) as progress,
    ):
        for window, vectors in _encoded(config, spec, progress, skip=0):
            sink.write(vectors, window.ids)
        if sink.rows == 0:
            raise DataError(f"{config.input} holds no texts")
    return BulkReport(**sink.summary, resumed=0, **progress.spent())


def _encode_resumable(config: BulkConfig, spec: EncoderSpec) -> BulkReport:
    path = Path(config.input)
    before = path.stat()
    with open_job(
        Path(config.output),
        file_plan(config, spec.folder, spec.digest),
        with_ids=config.id_field is not None,
        resume=config.resume,
        overwrite=config.overwrite,
    ) as job:
        resumed = job.rows

        def saved() -> str:
            return f"{job.rows} texts are saved in {job.folder}" if job.rows else ""

        with _progress(config, resumed) as progress, told_how_to_resume(saved):
            if not job.is_complete:
                _encode_rest(config, spec, job, progress)
                now = path.stat()
                if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                    raise DataError(
                        f"{path} was changed while it was read: encode it again, with --overwrite"
                    )
                job.assemble()
        made = job.publish()
    return BulkReport(**made, resumed=resumed, **progress.spent())


def _encode_rest(config: BulkConfig, spec: EncoderSpec, job: JobFolder, progress: Progress) -> None:
    """Encode the windows that the job has not finished."""
    for window, vectors in _encoded(config, spec, progress, skip=job.parts):
        if window.start != job.rows:
            raise DataError(
                f"{job.folder} has {job.rows} rows of {window.start}: start anew with --overwrite"
            )
        job.save(vectors, window.ids)
    if job.rows == 0:
        raise DataError(f"{config.input} holds no texts")


def _encoded(
    config: BulkConfig, spec: EncoderSpec, progress: Progress, *, skip: int
) -> Iterator[tuple[TextWindow, Embeddings]]:
    """Yield the windows of the input, but for the first `skip`, with their vectors."""
    rows = iter_records(config.input, config.text_field, config.id_field)
    stream = record_windows(rows, config.window, window_characters(spec.folder, spec.load))
    encode = partial(encode_windows, spec, processes=config.processes, report_counter=progress.use)
    with texts_named_in(config.input):
        yield from with_results(islice(stream, skip, None), encode)


def _progress(config: BulkConfig, done: int) -> Progress:
    # Counting reads the whole file once more, so it happens only if a bar is shown.
    counted = config.show_progress_bar and Path(config.input).is_file()
    total = count_records(config.input) if counted else None
    return Progress(config.show_progress_bar, total, done)
