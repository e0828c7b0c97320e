"""Hold the options of bulk jobs: of a file, and of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from mirror_rt.adapters.ray_cluster import ClusterOptions
from mirror_rt.errors import ConfigError, InvalidTextError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import EncodeOptions
from mirror_rt.schema import Rule, check_rules, least


@dataclass(frozen=True)
class JobConfig:
    """Hold the options that both kinds of jobs have.

    Attributes:
        model: folder or hub name of a bundle.
        text_field: field or column of the texts.
        resume: go on with an unfinished job, if there is one.
        overwrite: replace an existing output; unless it is resumed, an unfinished job too.
        window: most texts that are sorted by length together.
        show_progress_bar: on standard error.
        load: how each process loads the bundle, or a mapping of these options.
        options: how the texts become vectors, or a mapping of these options. With `errors="raise"`
            a text that cannot be encoded ends the job.
    """

    model: str
    input: str
    output: str
    text_field: str = "text"
    _: KW_ONLY
    resume: bool = False
    overwrite: bool = False
    window: Annotated[int, least(1)] = 8192
    show_progress_bar: bool = False
    load: LoadOptions = field(default_factory=LoadOptions)
    options: EncodeOptions = field(default_factory=EncodeOptions)

    def __post_init__(self) -> None:
        for name, kind in (("load", LoadOptions), ("options", EncodeOptions)):
            if isinstance(given := getattr(self, name), Mapping):
                object.__setattr__(self, name, kind(**given))
        check_rules(self)


@dataclass(frozen=True, slots=True)
class BulkConfig(JobConfig):
    """Say which file to encode, and where to. `mirror-rt encode` has an option for every field.

    Attributes:
        input: a file of a format that has fields, by its name, as NAME.jsonl, .csv, .tsv or
            .parquet (see bulk.md for all); others are lines, as "-" is: standard input.
        output: a file in .npy, .jsonl, .parquet or .arrow; "-" for JSON lines on standard output.
        id_field: field or column of the ids; by default rows that are numbered from 0.
        processes: how many processes encode; they share the processors, unless the number of
            threads of each is given.
        window: most texts that are sorted by length together, and saved together. Long texts and
            large models have fewer, so that work is saved every minute or sooner.
        task: of sparse encoders and late-interaction models, what the texts are: documents unless
            this says queries.
        max_active_dims: of sparse encoders, most words of a text, of which those that weigh most
            are kept; by default the number that the model declares, or all.
        threshold: of sparse encoders, leave out words that weigh no more than this.
        pool_factor: of late-interaction models, merge similar vectors of a document, so that one is
            left of this number.
    """

    id_field: str | None = None
    processes: Annotated[int, Rule("in 1 .. 256", lambda number: 1 <= number <= 256)] = 1
    task: Literal["document", "query"] = "document"
    max_active_dims: int | None = None
    threshold: float = 0.0
    pool_factor: float = 1.0

    @property
    def is_resumable(self) -> bool:
        """Return whether input and output are files, which are still there after a kill."""
        return Path(self.input).is_file() and self.output != "-"


@dataclass(frozen=True, slots=True)
class DatasetConfig(JobConfig, ClusterOptions):
    """Say which dataset to encode, and where to; see `ClusterOptions` for the engine.

    Attributes:
        input: a folder of files in the formats of `BulkConfig` and .txt, a pattern
            (`texts/**/*.parquet`), or a file; in an object store by its address (`s3://...`). The
            lines of .txt files are texts, in a column that is named `text_field`.
        output: folder for the vectors: a Parquet file for each block of the input, which is a row
            group of a Parquet file or a whole file of another format.
        columns: columns of the input to keep beside the vectors; by default all of them.
        shard: encode only the blocks I, I + N, I + 2N ... of all, given as I/N with I from 0;
            by default all blocks.
        resume: go on with an unfinished job: whole parts of this job are kept.
        overwrite: remove the files that an earlier job has written to the folder.
        options: how the texts become vectors; with `errors="raise"` a text that cannot be encoded
            ends the job, with `errors="nan"` its vector is null.
    """

    columns: tuple[str, ...] | None = None
    shard: str | None = None

    def __post_init__(self) -> None:
        JobConfig.__post_init__(self)
        ClusterOptions.__post_init__(self)
        parse_shard(self.shard)
        if self.shard is not None and self.overwrite:
            raise ConfigError(
                "--overwrite with --shard would remove the parts of other shards: remove the "
                "folder, or take another one"
            )


def parse_shard(shard: str | None) -> tuple[int, int]:
    """Return i and n of the text "i/n", and 0 and 1 for None; ConfigError for other texts."""
    if shard is None:
        return 0, 1
    index, _, count = shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ConfigError(
            field="shard", expected="I/N with I in 0 .. N-1, such as 0/4", value=shard
        )
    return int(index), int(count)


@contextmanager
def texts_named_in(where: str) -> Iterator[None]:
    """Say of texts that cannot be encoded where they are, counted from 1 as lines are."""
    try:
        yield
    except InvalidTextError as error:
        raise InvalidTextError(
            [(row + 1, reason) for row, reason in error.items],
            noun=f"{where}, text",
            hint="; pass --errors nan (or zero) to give such texts NaN or null (or zeros)",
        ) from error
