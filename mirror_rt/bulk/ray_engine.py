"""Encode the blocks of a dataset in the actors of a Ray cluster."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mirror_rt.bulk.options import DatasetConfig
from mirror_rt.bulk.parts import PartWriter, find_part
from mirror_rt.bulk.plan import dataset_plan
from mirror_rt.bulk.progress import Progress, RunCounter
from mirror_rt.bulk.reading import Block
from mirror_rt.errors import DataError, MirrorError, require
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.kept_work import Identity

# The rows of a Ray block: each holds one block of the dataset, so a task that is started anew has
# few of them to look at again. More blocks would cost the driver memory.
_MOST_TASKS = 4096


def plan_of_worker(config: DatasetConfig) -> Identity:
    """Return the plan of a job as a worker makes it: the driver may have other processors."""
    import ray

    require("ray.data", extra="ray", purpose="--engine ray")
    of_config = ray.remote(num_cpus=config.worker_cpus, num_gpus=config.worker_gpus)(_plan)
    plan: Identity = ray.get(of_config.remote(config))
    return plan


def encode_with_ray(
    config: DatasetConfig, todo: list[Block], job: str, progress: Progress
) -> Iterator[tuple[Block, dict[str, Any]]]:
    """Yield blocks and the records of their parts, as actors finish them, in any order.

    Ray starts a worker that dies anew, and gives its task to another one. Whatever is run twice
    writes the same file twice.
    """
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    progress.use(progress.counter)  # the time of starting Ray does not count
    named = {block.part: block for block in todo}
    rows = [{"block": pickle.dumps(block)} for block in todo]
    made = ray.data.from_items(rows, override_num_blocks=min(len(rows), _MOST_TASKS)).map_batches(
        BlockEncoder,
        fn_constructor_args=[config, job],
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=_workers(config, len(todo))),
        num_cpus=config.worker_cpus,
        num_gpus=config.worker_gpus,
    )
    for row in made.iter_rows():
        part, record, counts, error = pickle.loads(row["made"])
        if error is not None:
            raise DataError(error)
        progress.counter.add(*counts)
        yield named[part], record


class BlockEncoder:
    """Encode blocks in an actor of Ray Data, which loads the encoder once.

    It refuses to on a machine that would make other vectors, because it has another version of the
    bundle, of mirror_rt, of the engine or another provider.
    """

    def __init__(self, config: DatasetConfig, job: str) -> None:
        self._job = job
        self._writer = PartWriter.open(_with_resources(config), job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Encode blocks; return the name, the record and the counts of each, or an error."""
        return {"made": [pickle.dumps(self._encode(pickle.loads(one))) for one in batch["block"]]}

    def _encode(self, block: Block) -> tuple[str, Any, tuple[int, int, int], str | None]:
        counter = RunCounter()
        try:
            # A task that is started anew finds the parts that it has finished before.
            record = find_part(self._writer.output, block, self._job)
            record = record or self._writer.write(block, counter.add_batch)
        except MirrorError as error:  # Ray would wrap it, and try some blocks again
            return block.part, None, (0, 0, 0), str(error)
        _, tokens, padded = counter.read()
        return block.part, record, (record["rows"], tokens, padded), None


def _plan(config: DatasetConfig) -> Identity:
    return dataset_plan(_with_resources(config))


def _with_resources(config: DatasetConfig) -> DatasetConfig:
    """Let the encoder use the resources of Ray; options that were given have precedence."""
    from mirror_rt.adapters.ray import assigned_resources

    default = LoadOptions()
    free = {name: value for name, value in assigned_resources().items()
            if getattr(config.load, name) == getattr(default, name)}  # fmt: skip
    return replace(config, load=replace(config.load, **free))


def _workers(config: DatasetConfig, blocks: int) -> int:
    """Return the number of actors: as many as the cluster has room for, if none is given."""
    import ray

    if config.workers is not None:
        return config.workers
    have = ray.cluster_resources()
    room = math.inf
    for kind, each in (("CPU", config.worker_cpus), ("GPU", config.worker_gpus)):
        if each:
            room = min(room, have.get(kind, 0) // each)
    return max(1, min(int(room), blocks))
