"""Run one bulk job, from a file to a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mirror_rt.bulk.job import JobFolder, open_job
from mirror_rt.bulk.plan import find_bundle, vector_plan
from mirror_rt.bulk.progress import Progress
from mirror_rt.bulk.records import Window, count_records, iter_records, windows
from mirror_rt.bulk.workers import EncoderSpec, WindowVectors, encode_windows
from mirror_rt.deprecation import accept_flat
from mirror_rt.errors import ConfigError, DataError, InvalidTextError, ProcessGroupError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.atomic import sha256
from mirror_rt.io.vectors import open_sink, output_files
from mirror_rt.pipeline.options import EncodeOptions


@accept_flat(load=LoadOptions, options=EncodeOptions)
@dataclass(frozen=True, slots=True)
class BulkConfig:
    """Say what to encode, and where to. `mirror-rt encode` has an option for every field.

    Attributes:
        model: folder or hub name of a bundle.
        input: a file in .txt (and others: lines), .jsonl, .csv or .parquet; "-" for lines on
            standard input.
        output: a file in .npy, .jsonl, .parquet or .arrow; "-" for JSON lines on standard output.
        text_field: field or column of the texts.
        id_field: field or column of the ids; None for rows that are numbered from 0.
        resume: go on with an unfinished job, if there is one.
        overwrite: replace an existing output; unless it is resumed, an unfinished job too.
        processes: how many processes encode; they share the processors, unless the number of
            threads of each is given.
        window: most texts that are sorted by length together; of long texts fewer. Work is saved
            after each window, and every half minute.
        show_progress_bar: on standard error.
        load: how each process loads the bundle.
        options: how the texts become vectors; with `errors="raise"` a text that cannot be encoded
            ends the job. Fields of `load` and `options` are accepted as arguments of their own,
            too, with a DeprecationWarning, and both as mappings.
    """

    model: str
    input: str
    output: str
    text_field: str = "text"
    id_field: str | None = None
    resume: bool = False
    overwrite: bool = False
    processes: int = 1
    window: int = 8192
    show_progress_bar: bool = False
    load: LoadOptions = field(default_factory=LoadOptions)
    options: EncodeOptions = field(default_factory=EncodeOptions)

    @property
    def is_resumable(self) -> bool:
        """Return whether input and output are files, which are still there after a kill."""
        return Path(self.input).is_file() and self.output != "-"


@dataclass(frozen=True, slots=True)
class BulkReport:
    """Report the outcome of a job.

    Attributes:
        rows: number of rows of the output.
        invalid: number of rows whose texts could not be encoded.
        dimension: length of a row.
        dtype: type of a row's numbers.
        resumed: number of rows that an earlier, interrupted run had finished (in an unfinished
            window the chunks of a long text count as rows).
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

    The output appears only when it is complete. From a file to a file, finished parts are kept in
    OUTPUT.partial in the meantime: with `resume`, a killed job goes on and writes the same bytes.

    Raises:
        ConfigError: an option has an unusable value.
        DataError: the input cannot be used, or has changed since the job was begun.
        InvalidTextError: a text cannot be encoded, and `errors` is `raise`.
        OutputExistsError: the output, or an unfinished job, exists.
        BundleError, ProviderError: as `Encoder.load`.
        ProcessGroupError: one of several processes ended unexpectedly.
    """
    if not 1 <= config.processes <= 256:
        raise ConfigError(f"processes must be in 1 .. 256, got {config.processes}")
    if config.window < 1:
        raise ConfigError(f"window must be at least 1, got {config.window}")
    if config.resume and not config.is_resumable:
        raise ConfigError("--resume needs an input file and an output file, not streams")
    if config.output != "-":
        output_files(Path(config.output), with_ids=config.id_field is not None)
    spec = EncoderSpec(find_bundle(config.model, config.load), config.load, config.options)
    return _encode_resumable(config, spec) if config.is_resumable else _encode_once(config, spec)


def _encode_once(config: BulkConfig, spec: EncoderSpec) -> BulkReport:
    """Encode from or to a stream, which cannot be resumed."""
    with_ids = config.id_field is not None
    with (
        open_sink(config.output, overwrite=config.overwrite, with_ids=with_ids) as sink,
        _progress(config, 0) as progress,
    ):
        for done in _encoded(config, spec, _windows(config), progress):
            sink.write(done.vectors, done.window.ids)
        if sink.rows == 0:
            raise DataError(f"{config.input} holds no texts")
    return BulkReport(**sink.summary, resumed=0, **progress.spent())


def _encode_resumable(config: BulkConfig, spec: EncoderSpec) -> BulkReport:
    path, with_ids = Path(config.input), config.id_field is not None
    read = path.stat()
    keep = {"resume": config.resume, "overwrite": config.overwrite}
    with open_job(Path(config.output), _plan(config, spec), with_ids=with_ids, **keep) as job:
        spec, resumed = replace(spec, save_in=job.folder), job.saved_rows()
        with _progress(config, resumed) as progress:
            if not job.is_complete:
                with _told_how_to_resume(job):
                    for done in _encoded(config, spec, _rest(config, job), progress):
                        job.save(done.vectors, done.window.ids)
                    if job.rows == 0:
                        raise DataError(f"{config.input} holds no texts")
                    now = path.stat()
                    if (now.st_size, now.st_mtime_ns) != (read.st_size, read.st_mtime_ns):
                        raise DataError(
                            f"{path} was changed while it was read: encode it again, with "
                            "--overwrite"
                        )
                    job.assemble()
        made = job.publish()
    return BulkReport(**made, resumed=resumed, **progress.spent())


def _windows(config: BulkConfig) -> Iterator[Window]:
    return windows(iter_records(config.input, config.text_field, config.id_field), config.window)


def _rest(config: BulkConfig, job: JobFolder) -> Iterator[Window]:
    """Return the windows that the job has not finished, after reading past the finished ones."""
    stream = _windows(config)
    done = sum(len(window.texts) for window in islice(stream, job.parts))
    if done != job.rows:
        raise DataError(f"{job.folder} has {job.rows} rows of {done}: start anew with --overwrite")
    return stream


def _encoded(
    config: BulkConfig, spec: EncoderSpec, stream: Iterable[Window], progress: Progress
) -> Iterator[WindowVectors]:
    results = encode_windows(spec, stream, processes=config.processes, report_counter=progress.use)
    try:
        with contextlib.closing(results):
            yield from results
    except InvalidTextError as error:
        raise InvalidTextError(
            [(row + 1, reason) for row, reason in error.items],
            noun=f"{config.input}, text",
            hint="; pass --errors nan (or zero) to give such texts NaN (or zeros)",
        ) from error


def _progress(config: BulkConfig, done: int) -> Progress:
    # Counting reads the whole file once more, so it happens only if a bar is shown.
    counted = config.show_progress_bar and Path(config.input).is_file()
    total = count_records(config.input) if counted else None
    return Progress(config.show_progress_bar, total, done)


@contextlib.contextmanager
def _told_how_to_resume(job: JobFolder) -> Iterator[None]:
    """Add to an error, if the job can be resumed, how many texts are saved and where."""
    try:
        yield
    except (KeyboardInterrupt, OSError, ProcessGroupError, InvalidTextError) as error:
        if (rows := job.saved_rows()) == 0:
            raise
        saved = f"{rows} texts are saved in {job.folder}: go on with --resume"
        if isinstance(error, OSError):
            raise OSError(f"{error}; {saved}") from error
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {saved}") from error
        error.args = (f"{error}; {saved}",)
        raise


def _plan(config: BulkConfig, spec: EncoderSpec) -> dict[str, Any]:
    """Return everything that determines the bytes of the output."""
    return {
        **vector_plan(spec.folder, spec.load, spec.options),
        "input": sha256(Path(config.input)),
        "text_field": config.text_field,
        "id_field": config.id_field,
        "window": config.window,
    }
