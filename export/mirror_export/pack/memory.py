"""Find out how many exports fit into memory at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from mirror_rt.cpus import available_cpus

__all__ = ["available_memory", "expected_peak", "jobs_that_fit"]

# The memory assumed for one export: its libraries and a large tokenizer, and the weights three
# times: in the model, in the file being written and in the session that checks it. A float32 export
# takes less: 1.34 GB for 470 MB of weights (peak_bytes of mirror-rt export --json, 2026-11-21).
_TIMES_WEIGHTS, _BASE = 3, 700_000_000
_CGROUPS = Path("/sys/fs/cgroup")
# Names of the limit, the usage and (in memory.stat) its reclaimable part, in cgroup v2 and v1.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def expected_peak(weights: Sequence[int]) -> int:
    """Return the bytes that exports running together may need, given the bytes of their weights."""
    return sum(_TIMES_WEIGHTS * size + _BASE for size in weights)


def jobs_that_fit(weights: Sequence[int], available: int | None = None) -> int:
    """Return how many of the exports may run at a time: at least 1, at most one per processor.

    Args:
        weights: bytes of the weights of each model.
        available: bytes of memory; None for what this process may still use.
    """
    memory = available_memory() if available is None else available
    largest = sorted(weights, reverse=True)[: available_cpus()]
    fitting = [n for n in range(1, len(largest) + 1) if expected_peak(largest[:n]) <= memory]
    return max(fitting, default=1)


def available_memory(
    meminfo: Path = Path("/proc/meminfo"),
    membership: Path = Path("/proc/self/cgroup"),
    cgroups: Path = _CGROUPS,
) -> int:
    """Return the bytes that this process may still use, by the machine and by its cgroups' limits.

    Return 0 if the system does not tell (it is not Linux).
    """
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return 0
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*free, *_left_in_cgroups(membership, cgroups)], default=0)


def _left_in_cgroups(membership: Path, cgroups: Path) -> list[int]:
    """Return the bytes left in every cgroup of this process, up to the root, that has a limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroups, _V2
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", _V1
        else:
            continue
        own = root / path.lstrip("/")
        for folder in itertools.chain([own], own.parents):
            left += _left(folder, *names)
            if folder == root:
                break
    return left


def _left(folder: Path, limit_name: str, usage_name: str, reclaimable: str) -> list[int]:
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return []  # the root has no limit; a container does not see the groups above its own
    if limit == "max":
        return []
    return [max(0, int(limit) - usage + int(stat.get(reclaimable, 0)))]
