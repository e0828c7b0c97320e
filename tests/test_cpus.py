import os

import pytest

from mirror_rt.cpus import CpuBudget, cpu_budget

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "33 32 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
V1 = "sys/fs/cgroup/cpu,cpuacct"


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.fixture
def system(tmp_path):
    """Make a file system: {path: content}."""

    def make(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content + "\n")
        return tmp_path

    return make


def v2(system, path, limits):
    files = {"proc/self/mountinfo": V2_MOUNT, "proc/self/cgroup": f"0::{path}"}
    return cpu_budget(system(files | {f"sys/fs/cgroup/{k}": v for k, v in limits.items()}))


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1),
     ("10000 100000", 1), ("1600000 100000", 8)],
)  # fmt: skip
def test_cgroup_v2_in_a_container(system, limit, threads):
    assert v2(system, "/", {"cpu.max": limit}).threads == threads


def test_cgroup_v2_nested_the_narrowest_limit_holds(system):
    budget = v2(
        system,
        "/kubepods/pod1/box",
        {
            "kubepods/cpu.max": "600000 100000",
            "kubepods/pod1/cpu.max": "300000 100000",
            "kubepods/pod1/box/cpu.max": "max 100000",
            "elsewhere/cpu.max": "100000 100000",
        },
    )
    assert (budget.threads, budget.quota) == (3, 3.0)
    assert budget.source.endswith("kubepods/pod1/cpu.max")
    assert "3 threads (quota of 3 processors in" in str(budget)


@pytest.mark.parametrize(
    ("root", "path", "folder"),
    [
        ("/", "/docker/1f", f"{V1}/docker/1f"),  # seen from the host
        ("/docker/1f", "/docker/1f", V1),  # a container: its own cgroup is mounted
        ("/../..", "/docker/1f", V1),  # a foreign root: the mount alone
    ],
)
@pytest.mark.parametrize(("quota", "threads"), [("250000", 2), ("-1", 8), ("400000", 4)])
def test_cgroup_v1(system, root, path, folder, quota, threads):
    files = {
        "proc/self/mountinfo": V1_MOUNT.format(root=root),
        "proc/self/cgroup": f"4:memory:/x\n3:cpu,cpuacct:{path}\n2:cpuset:/",
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": "100000",
    }
    assert cpu_budget(system(files)).threads == threads


def test_v1_and_v2_side_by_side(system):
    files = {
        "proc/self/mountinfo": f"{V1_MOUNT.format(root='/')}\n{V2_MOUNT}",
        "proc/self/cgroup": "3:cpu:/\n0::/",
        f"{V1}/cpu.cfs_quota_us": "300000",
        f"{V1}/cpu.cfs_period_us": "100000",
    }
    assert cpu_budget(system(files)).threads == 3


@pytest.mark.parametrize("content", ["", "max", "a b", "100000", "100000 0"])
def test_what_cannot_be_read_is_no_limit(system, content):
    assert v2(system, "/", {"cpu.max": content}) == CpuBudget(8)


def test_without_cgroups(tmp_path):
    assert cpu_budget(tmp_path) == CpuBudget(8)
    assert str(CpuBudget(8)) == "8 threads (affinity mask of 8 processors)"


def test_here():
    budget = cpu_budget()
    assert 1 <= budget.threads <= budget.affinity == 8
