"""One system tuned in a process of its own: its time and its memory are nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from mirror_rt.diagnostics.benchmarking import peak_memory_mb
from mirror_rt.errors import MirrorError
from mirror_train.experiments.systems.job import Job

__all__ = ["Tuned", "main", "tune_here", "tune_in_process"]


@dataclass(frozen=True, slots=True)
class Tuned:
    """How tuning a system ended.

    Attributes:
        error: why there is no model; None where there is one.
        seconds: it took, reading and writing included.
        memory_mb: most physical memory of its process; None where it cannot be told.
        device_mb: most memory of the GPU; None without one.
        data: what it was tuned on, in words.
    """

    error: str | None = None
    seconds: float = 0.0
    memory_mb: float | None = None
    device_mb: float | None = None
    data: str = ""


def tune_in_process(job: Job) -> Tuned:
    """Tune a system as `job` says. An exception here, Ctrl-C too, ends the process."""
    process = subprocess.Popen(
        # -P: a torch.py in the working folder is not torch.
        [
            sys.executable,
            "-P",
            "-c",
            f"from {__name__} import main; main()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C reaches this process alone, which ends the other
    )
    with process:
        try:
            assert process.stdin is not None  # it is a pipe
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended already: see below
                pickle.dump(job, process.stdin)
                process.stdin.flush()
            # Its standard input stays open: the worker ends when that is closed.
            reply = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    return Tuned(**(json.loads(reply) if reply.endswith(b"\n") else _crash(process.returncode)))


def _crash(code: int) -> dict[str, Any]:
    if code >= 0:
        return {"error": f"its process ended with code {code}"}
    hint = "; out of memory, most likely" if code == -signal.SIGKILL else ""
    return {"error": f"its process was ended by signal {-code}, {signal.strsignal(-code)}{hint}"}


def main() -> None:
    """Tune what standard input says; reply with a line of JSON on standard output."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)  # whatever else prints is no reply
        job: Job = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        channel.write(json.dumps(tune_here(job)) + "\n")


def tune_here(job: Job) -> dict[str, Any]:
    """Tune a system in this process; the fields of `Tuned`."""
    import torch

    from mirror_train.experiments.systems.table import SYSTEMS

    began = time.perf_counter()
    try:
        report = SYSTEMS[job.system].tune(job)
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
    """What a manifest says of its training data, in words: sources and sizes."""
    if "source" in data:
        return f"{data['source']}, {data.get('strings', data.get('rows', 0)):,}"
    parts = [describe_data(part) for part in data.values() if isinstance(part, dict)]
    return "; ".join(part for part in parts if part)


def _end_with_parent() -> None:
    """Exit at once when standard input is closed: nobody waits for the model any more."""
    while os.read(0, 1):
        pass
    os._exit(1)
