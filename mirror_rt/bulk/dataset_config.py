"""Hold the options of a dataset's job, and open what they name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, cast

from mirror_rt.adapters.ray_cluster import ClusterOptions
from mirror_rt.bulk.blocks import parse_shard
from mirror_rt.bulk.parts import PartWriter
from mirror_rt.bulk.plan import find_bundle, vector_plan
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.encoding.tables import TableEncoder
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.storage import Folder
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions


@dataclass(frozen=True, slots=True)
class DatasetConfig(ClusterOptions):
    """Say which dataset to encode, and where to; see `ClusterOptions` for the engine.

    Attributes:
        model: folder or hub name of a bundle.
        input: a folder of .parquet, .jsonl, .csv and .txt files, a pattern (`texts/**/*.parquet`),
            or a file; in an object store by its address (`s3://...`).
        output: folder for the vectors: a Parquet file for each block of the input, which is a row
            group of a Parquet file or a whole file of another format.
        text_field: field or column of the texts, and the name of the lines of .txt files.
        columns: columns of the input to keep beside the vectors; None for all of them.
        shard: encode only the blocks I, I + N, I + 2N ... of all, given as I/N with I from 0;
            None for all blocks.
        resume: go on with an unfinished job: whole parts of this job are kept.
        overwrite: remove what an earlier job has written to the folder.
        window: most texts that are sorted by length together.
        show_progress_bar: on standard error.
        load: how each process loads the bundle.
        options: how the texts become vectors; with `errors="raise"` a text that cannot be encoded
            ends the job, with `errors="nan"` its vector is null.
    """

    model: str
    input: str
    output: str
    text_field: str = "text"
    columns: tuple[str, ...] | None = None
    shard: str | None = None
    resume: bool = False
    overwrite: bool = False
    window: int = 8192
    show_progress_bar: bool = False
    load: LoadOptions = field(default_factory=LoadOptions)
    options: EncodeOptions = field(default_factory=EncodeOptions)

    def __post_init__(self) -> None:
        ClusterOptions.__post_init__(self)
        parse_shard(self.shard)
        if self.window < 1:
            raise ConfigError(f"window must be at least 1, got {self.window}")
        if self.shard is not None and self.overwrite:
            raise ConfigError(
                "--overwrite with --shard would remove the parts of other shards: remove the "
                "folder, or take another one"
            )


def plan_of(config: DatasetConfig) -> dict[str, Any]:
    """Return everything that determines the part of a given block, on this machine."""
    return {
        **vector_plan(find_bundle(config.model, config.load), config.load, config.options),
        "text_field": config.text_field,
        "columns": None if config.columns is None else list(config.columns),
        "window": config.window,
    }


def make_writer(config: DatasetConfig, job: str) -> PartWriter:
    """Load the encoder of a job, and return what encodes its blocks."""
    encoder = Encoder.load(config.model, **config.load.keywords())
    how = cast(EncodeKeywords, asdict(config.options))
    table = TableEncoder(encoder, text_column=config.text_field, columns=config.columns, **how)
    return PartWriter(Folder.at(config.output), table, job, config.window)
