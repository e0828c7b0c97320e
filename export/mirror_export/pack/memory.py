"""Find out how many exports fit into memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirror_rt.cpus import available_cpus, cgroup_folders

# The memory assumed for one export: its libraries and a large tokenizer, and the weights three
# times: in the model, in the file being written and in the session that checks it. A float32 export
# takes less: 1.34 GB for 470 MB of weights (peak_bytes of mirror-rt export --json, 2026-11-21).
_TIMES_WEIGHTS, _BASE = 3, 700_000_000
# Names of the limit, the usage and (in memory.stat) its reclaimable part, in cgroup v2 and v1.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def expected_peak(weights: Sequence[int]) -> int:
    """Return the bytes that exports running together may need, given the bytes of their weights."""
    return sum(_TIMES_WEIGHTS * size + _BASE for size in weights)


def jobs_that_fit(weights: Sequence[int], available: int | None = None) -> int:
    """Return how many of the exports may run at a time: at least 1, at most one per processor.

    `weights` are the bytes of each model's; `available` is None for what this process may use.
    """
    memory = available_memory() if available is None else available
    largest = sorted(weights, reverse=True)[: available_cpus()]
    fitting = [n for n in range(1, len(largest) + 1) if expected_peak(largest[:n]) <= memory]
    return max(fitting, default=1)


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still use, by the machine and by its cgroups' limits.

    It is 0 if the system does not tell (it is not Linux); `root` has /proc and the cgroups.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for folder in cgroup_folders(root, "memory"):
        free += [*_left(folder, *_V2), *_left(folder, *_V1)]
    return min(free, default=0)


def _left(folder: Path, limit_name: str, usage_name: str, reclaimable: str) -> list[int]:
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return []  # the other version's names; and the root has no limit
    if limit == "max":
        return []
    return [max(0, int(limit) - usage + int(stat.get(reclaimable, 0)))]
