"""How many exports fit into memory at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from mirror_rt.cpus import available_cpus

__all__ = ["available_memory", "expected_peak", "jobs_that_fit"]

# What one export is allowed for: its libraries, a large tokenizer, and the weights as the model, as
# the file being written and as the session that checks it. Float32 alone takes less: 1.34 GB for
# 470 MB of weights (the peak_bytes of mirror-rt export --json, 2026-11-21).
_TIMES_WEIGHTS, _BASE = 3, 700_000_000
_CGROUPS = Path("/sys/fs/cgroup")
# (limit, usage, what of the usage can be reclaimed, in memory.stat) of cgroup v2 and v1
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def expected_peak(weights: Sequence[int]) -> int:
    """Bytes that exports running together may need, given the bytes of their weights."""
    return sum(_TIMES_WEIGHTS * size + _BASE for size in weights)


def jobs_that_fit(weights: Sequence[int], available: int | None = None) -> int:
    """How many of the exports may run at a time, at least 1, at most one a processor.

    Args:
        weights: bytes of every model's weights.
        available: bytes; None for what this process may still use.
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
    """Bytes this process may still use: what the machine has, cut by the limits of its cgroups.

    Where the system does not say (not Linux), 0.
    """
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return 0
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*free, *_left_in_cgroups(membership, cgroups)], default=0)


def _left_in_cgroups(membership: Path, cgroups: Path) -> list[int]:
    """What is left of the limit of every cgroup above this process that has one."""
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
