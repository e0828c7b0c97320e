"""Encode a dataset, whose files are more than one machine wants: block by block, in shards.

DIR/_job.json               all that determines the vectors; another job is refused
DIR/NAME-00000.parquet      a block's columns and vectors: see `mirror_rt.bulk.parts`
DIR/_manifest.json          written when all blocks are there: see `merge_manifest`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mirror_rt.adapters.ray_cluster import connected
from mirror_rt.bulk.options import DatasetConfig, parse_shard
from mirror_rt.bulk.parts import (
    MANIFEST,
    PartWriter,
    open_output,
    read_plan,
    refuse_parts,
    total_of,
    whole_parts,
    write_manifest,
)
from mirror_rt.bulk.plan import dataset_plan, find_bundle, refuse_other_plan
from mirror_rt.bulk.progress import JobReport, Progress, told_how_to_resume
from mirror_rt.bulk.reading import Block, find_blocks
from mirror_rt.bundle.identity import digest_of
from mirror_rt.io.storage import Folder
from mirror_rt.kept_work import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport(JobReport):
    """Report the outcome of a run; see `JobReport`, whose rows are those of the parts.

    Attributes:
        blocks: number of blocks of the shard, or of the dataset.
    """

    blocks: int


# Yields each block that it has encoded, with the record of its part, and counts in the progress.
_Engine = Callable[
    [DatasetConfig, list[Block], str, Progress], Iterator[tuple[Block, dict[str, Any]]]
]


def encode_dataset(config: DatasetConfig) -> DatasetReport:
    """Encode the blocks of a dataset, or of a shard of it, that have no whole part yet.

    Without a shard, the manifest is written at the end; for shards `merge_manifest` writes it.

    Raises:
        ConfigError: an option has an unusable value.
        DataError: the input cannot be used, or the output is that of another job.
        InvalidTextError: a text cannot be encoded, and `errors` is `raise`.
        OutputExistsError: the output holds something else, or parts and `resume` is False.
        BundleError, ProviderError: as `Encoder.load`.
        ProcessGroupError: the engine cannot be reached, or gives the job up.
    """
    if config.engine is None:
        return _encode(config, dataset_plan(config), _encode_here)
    from mirror_rt.bulk import ray_engine

    with connected(config):
        return _encode(config, ray_engine.plan_of_worker(config), ray_engine.encode_with_ray)


def _encode(config: DatasetConfig, plan: Identity, engine: _Engine) -> DatasetReport:
    """Let an engine encode the blocks of the shard that have no whole part of the plan's job."""
    index, count = parse_shard(config.shard)
    output = Folder.at(config.output)
    blocks = find_blocks(config.input, outside=output)
    open_output(output, plan, resume=config.resume, overwrite=config.overwrite)
    mine, job = blocks[index::count], plan.digest
    parts = whole_parts(output, mine, job)
    if not config.resume:
        refuse_parts(output, mine, parts)
    resumed, todo = total_of(parts).rows, [block for block in mine if block.part not in parts]
    known = [block.rows for block in mine]
    total = None if None in known else sum(filter(None, known))
    with (
        Progress(config.show_progress_bar, total, resumed) as progress,
        told_how_to_resume(lambda: f"{len(parts)} parts are saved in {output}" if parts else ""),
    ):
        if todo:
            output.delete(MANIFEST)  # which says that the job is complete
            for block, record in engine(config, todo, job, progress):
                parts[block.part] = record
    if config.shard is None:
        write_manifest(output, blocks, pages=False)
    counts = total_of(parts)
    return DatasetReport(blocks=len(parts), counts=counts, resumed=resumed, **progress.spent())


def merge_manifest(config: DatasetConfig) -> dict[str, Any]:
    """Prove that the shards together are complete and of one model; write and return the manifest.

    Every part is read: it must be whole, with checksums that are right, of the job that the folder
    records, and of the input as it is now; the bundle of that job must be `config.model`.

    Raises:
        DataError: parts are missing, damaged, of another job, model or input, or without a block.
    """
    output = Folder.at(config.output)
    blocks, plan = find_blocks(config.input, outside=output), read_plan(output)
    found = find_bundle(config.model, config.load).folder
    digest = digest_of(found, verified=config.load.verify)
    asked = {"bundle": digest, "text_field": config.text_field}
    refuse_other_plan(output, plan, Identity({**plan.values, **asked}))
    return write_manifest(output, blocks, pages=True)


def _encode_here(
    config: DatasetConfig, todo: list[Block], job: str, progress: Progress
) -> Iterator[tuple[Block, dict[str, Any]]]:
    writer = PartWriter.open(config, job)
    progress.use(progress.counter)  # the time of loading does not count
    for block in todo:
        yield block, writer.write(block, on_run=progress.counter.add_batch)
