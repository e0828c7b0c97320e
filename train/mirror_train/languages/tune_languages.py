"""Tune for many languages in one run, here or in a cluster, and report the result of each."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mirror_rt.adapters.ray_cluster import ClusterOptions, connected, run_tasks
from mirror_rt.errors import ConfigError, ProcessGroupError
from mirror_train.languages.language_job import (
    REPORT_FILE,
    Bases,
    LanguageJob,
    LanguageResult,
    base_key,
    failure,
    remember,
    run_job,
)
from mirror_train.training.run_config import left_over

logger = logging.getLogger("mirror_train")


def tune_languages(
    jobs: Sequence[LanguageJob],
    *,
    cluster: ClusterOptions = ClusterOptions(),  # noqa: B008  # it is frozen
    on_result: Callable[[LanguageResult], object] = lambda result: None,
) -> list[LanguageResult]:
    """Tune for one language after the other, or as tasks of a cluster; none stops the others.

    Languages with the same base model run one after another, so that it is loaded once. `tune`
    writes each of them: whole or not at all, and from its checkpoint where `resume` is set, or
    where the worker of a cluster has died. The measurements are kept in `languages.json` beside the
    folders. `on_result` is called with each result as soon as it is known; the results are returned
    in the order of the jobs.

    Raises:
        ConfigError: a worker is to have several cards.
        OutputExistsError: an output folder exists already; raised before any work.
        Interrupted: Ctrl-C during training; a checkpoint was written.
        MissingDependencyError, ProcessGroupError: the cluster cannot be used.
    """
    _check_outputs(jobs)
    results = dict[str, LanguageResult]()
    bases = [base_key(job.config) for job in jobs]
    ordered = sorted(jobs, key=lambda job: bases.index(base_key(job.config)))
    run = _in_turn(ordered) if cluster.engine is None else _in_cluster(ordered, cluster)
    for job, result in run:
        results[job.language] = result
        remember(job.config.out.parent / REPORT_FILE, result)
        on_result(result)
    return [results[job.language] for job in jobs]


_Run = Iterator[tuple[LanguageJob, LanguageResult]]


def _in_turn(jobs: Sequence[LanguageJob]) -> _Run:
    bases = Bases()
    for job in jobs:
        yield job, run_job(job, bases)


def _in_cluster(jobs: Sequence[LanguageJob], cluster: ClusterOptions) -> _Run:
    if cluster.worker_gpus > 1:
        raise ConfigError(
            field="worker_gpus",
            expected="0 or 1, for a language is tuned on one card",
            value=cluster.worker_gpus,
        )
    named = {job.language: job for job in jobs}
    tasks = [_with_absolute_paths(job) for job in jobs]
    try:
        with connected(cluster):
            for task, result in run_tasks(_run_in_worker, tasks, cluster, again=_resumed):
                job = named[task.language]
                if isinstance(result, ProcessGroupError):
                    result = failure(job, result)
                elif result.warning and result.status == "tuned":
                    logger.warning("%s", result.warning)  # the worker's own log is not seen
                yield job, replace(result, model=job.config.model)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            "interrupted; --resume keeps the languages that are finished, and goes on from the "
            "checkpoints of those that were running"
        ) from error


def _run_in_worker(job: LanguageJob) -> LanguageResult:
    """Tune for a language with the processors and cards of this task of Ray."""
    import torch

    from mirror_rt.adapters.ray import assigned_resources

    resources = assigned_resources()
    torch.set_num_threads(resources["threads"])
    if "devices" not in resources and job.config.device == "auto":
        job = replace(job, config=replace(job.config, device="cpu"))
    return run_job(job, _bases_of_worker())


# The cache of this process, which Ray lets run one task after another.
_bases_of_worker = functools.cache(Bases)


def _resumed(job: LanguageJob) -> LanguageJob:
    """Return the job that goes on from the files of a worker that died."""
    if job.config.overwrite:  # its files cannot be told from those of an earlier run
        return job
    return replace(job, config=replace(job.config, resume=True))


def _with_absolute_paths(job: LanguageJob) -> LanguageJob:
    """Return the job for a worker, which runs in another folder."""
    config, model = job.config, Path(job.config.model)
    config = replace(config, out=config.out.absolute(),
                     model=str(model.absolute()) if model.exists() else config.model)  # fmt: skip
    return replace(job, config=config, strings=job.strings and job.strings.absolute(),
                   pairs=job.pairs and job.pairs.absolute())  # fmt: skip


def _check_outputs(jobs: Sequence[LanguageJob]) -> None:
    for job in jobs:
        if job.config.resume or job.config.overwrite:
            continue
        for path in (job.config.out, job.config.beside("checkpoints")):
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise left_over(path)
