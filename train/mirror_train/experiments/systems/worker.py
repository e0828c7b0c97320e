"""Tune one system in a process of its own, so that its time and memory are measured alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mirror_rt.child_process import give_task, how_it_ended, read_reply, start_child
from mirror_rt.diagnostics.benchmarking import peak_memory_mb
from mirror_rt.errors import MirrorError
from mirror_train.experiments.systems.config import SystemJob


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of tuning a system: why there is no model, or how long it took and on what data.

    The seconds include reading and writing. The memory is the peak of the process (physical) and of
    the GPU; None where it is not known, or where there is no GPU.
    """

    error: str | None = None
    seconds: float = 0.0
    memory_mb: float | None = None
    device_mb: float | None = None
    data: str = ""


def tune_in_process(job: SystemJob) -> Tuned:
    """Tune a system in a child process, which is killed on any exception here, even Ctrl-C."""
    with start_child() as process:
        try:
            give_task(process, tune_here, job)
            reply = read_reply(process)
        except BaseException:
            process.kill()
            raise
    return Tuned(**(reply or {"error": how_it_ended(process)}))


def tune_here(job: SystemJob) -> dict[str, Any]:
    """Tune a system in this process; return the fields of `Tuned`."""
    import torch

    from mirror_train.experiments.systems.table import SYSTEMS

    began = time.perf_counter()
    try:
        system = SYSTEMS[job.system]
        report = system.tune(system.recipe(), job)
    except (MirrorError, OSError) as error:
        return {"error": " ".join(str(error).split())}
    used = torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else 0.0
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "memory_mb": peak_memory_mb(),
        "device_mb": round(used, 1) if used else None,
        "data": describe_data(report.manifest.data or {}),
    }


def describe_data(data: dict[str, Any]) -> str:
    """Return the sources and sizes of a manifest's training data in words."""
    if "source" in data:
        return f"{data['source']}, {data.get('strings', data.get('rows', 0)):,}"
    parts = [describe_data(part) for part in data.values() if isinstance(part, dict)]
    return "; ".join(part for part in parts if part)
