"""Count the processors that this process may use, by its affinity mask and its cgroups' quotas."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mirror_rt.system import processors

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """The processors that this process may use."""

    # Those in its affinity mask, which cpusets and taskset restrict; the fast ones of a Mac.
    affinity: int
    quota: float | None = None  # CPU time by its cgroups, in processors; None for no limit
    source: str | None = None  # file that sets the quota

    @property
    def threads(self) -> int:
        """The number of threads that can run at once, by the affinity and the rounded quota."""
        if self.quota is None:
            return self.affinity
        return max(1, min(self.affinity, round(self.quota)))

    @property
    def has_quota(self) -> bool:
        """Tell whether the quota is a tighter limit than the affinity."""
        return self.quota is not None and self.quota < self.affinity

    def __str__(self) -> str:
        if not self.has_quota:
            return f"{self.threads} threads (affinity mask of {self.affinity} processors)"
        return (
            f"{self.threads} threads (quota of {self.quota:g} processors in {self.source}; "
            f"affinity mask of {self.affinity})"
        )


def cpu_budget(root: Path = _ROOT) -> CpuBudget:
    """Read the current limits of this process; `root` has /proc and the cgroup file systems."""
    affinity = processors()
    quotas = [
        (quota, str(file))
        for folder in cgroup_folders(root, "cpu")
        for file, quota in _quotas(folder)
    ]
    if not quotas:
        return CpuBudget(affinity)
    return CpuBudget(affinity, *min(quotas))


@functools.cache
def available_cpus() -> int:
    """Return the number of threads that can run at once, determined on the first call."""
    return cpu_budget().threads


def processor_names(root: Path = _ROOT) -> list[str]:
    """Return the name of each processor, as far as Linux or Python tell them."""
    lines = lines_of(root / "proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names or [name for name in (platform.processor(),) if name]


def cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's cgroups and of their parents, which all may limit it.

    The controller of cgroups v1 is `cpu` or `memory`, for example.
    """
    paths = _own_cgroups(root, controller)
    folders = []
    for mount, mount_root, kind in _cgroup_mounts(root, controller):
        path = PurePosixPath(paths.get(kind, "/"))
        # In a container, only the part below its own cgroup is mounted.
        inside = path.relative_to(mount_root) if path.is_relative_to(mount_root) else ""
        folder = root / mount.lstrip("/")
        below = folder / inside
        folders += [below, *(parent for parent in below.parents if parent.is_relative_to(folder))]
    return folders


def _own_cgroups(root: Path, controller: str) -> dict[str, str]:
    """Return paths by kind from lines like `4:cpu,cpuacct:/docker/1f` (v1) and `0::/user.slice`."""
    paths = {}
    for line in lines_of(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif controller in controllers.split(","):
            paths["cgroup"] = path
    return paths


def _cgroup_mounts(root: Path, controller: str) -> list[tuple[str, str, str]]:
    """List (mount point, its root, file system) of cgroup v2 and of the v1 controller."""
    mounts = []
    for line in lines_of(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ")[:3]
        mount_root, mount = before.split(" ")[3:5]
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            mounts.append((mount, mount_root, kind))
    return mounts


def _quotas(folder: Path) -> list[tuple[Path, float]]:
    """Return the file and the limit in processors that a cgroup sets, if it sets one."""
    v2, v1 = folder / "cpu.max", folder / "cpu.cfs_quota_us"
    values = [(v2, " ".join(lines_of(v2)))]
    values += [(v1, " ".join(lines_of(v1) + lines_of(folder / "cpu.cfs_period_us")))]
    found = []
    for file, text in values:
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):  # else `max`, `-1`, no file
            found.append((file, int(quota) / int(period)))
    return found


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file of the system; none if it is not there or cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
