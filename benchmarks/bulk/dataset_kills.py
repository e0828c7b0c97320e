"""Kill workers and drivers of `mirror-rt encode --engine ray`; compare its files with one run's.

    python benchmarks/bulk/dataset_kills.py BUNDLE --texts 200000 --kills 20

Every other kill is of a worker, after which the same driver goes on; the others are of the driver,
which is started again with --resume. All by SIGKILL, at random points. At the end the files are
compared byte by byte with those of a run of one process without Ray, which is measured, too.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--block", type=int, default=5_000, help="rows of a row group")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run(options, Path(name))


def run(options, folder):
    rng = random.Random(options.seed)
    write_texts(folder / "texts", options.texts, options.block, rng)
    line = [sys.executable, "-m", "mirror_rt.cli", "encode", options.bundle, "--input",
            str(folder / "texts"), "--resume"]  # fmt: skip
    with_ray = [*line, "--output", str(folder / "ray"), "--engine", "ray", "--workers",
                str(options.workers)]  # fmt: skip
    kills = {"worker": 0, "driver": 0}
    process = start(with_ray)
    for i in range(options.kills):
        wait_for_a_part(folder / "ray", process)
        time.sleep(rng.uniform(0, 2))
        # The part may be that of a worker that outlived its driver for a moment.
        while not (workers := workers_of(process.pid)) and process.poll() is None:
            time.sleep(0.05)
        if process.poll() is not None:
            break
        if i % 2 == 0:
            os.kill(rng.choice(workers), signal.SIGKILL)
            kills["worker"] += 1
        else:
            process.kill()
            process.wait()
            kills["driver"] += 1
            process = start(with_ray)
    if (code := process.wait()) != 0:
        sys.exit(f"the last run ended with {code}")
    print(f"killed {kills['worker']} workers and {kills['driver']} drivers")
    subprocess.run([*line, "--output", str(folder / "one"), "--threads", "1"], check=True)
    one, ray = contents(folder / "one"), contents(folder / "ray")
    rows = pyarrow.parquet.read_table(folder / "ray", columns=["id"])["id"].to_pylist()
    print(f"{len(ray)} files, {len(rows)} rows, {len(set(rows))} different ids")
    assert sorted(rows) == list(range(options.texts)), "rows are lost or doubled"
    assert one == ray, [name for name in one | ray if one.get(name) != ray.get(name)]
    print("the files are those of one process, byte by byte")


def write_texts(folder, n, block, rng):
    folder.mkdir()
    words = [f"w{i}" for i in range(5000)] + [
        "the",
        "of",
        "river",
        "town",
        "old",
        "by",
        "in",
        "a",
        "street",
        "house",
    ]
    for number, start in enumerate(range(0, n, 4 * block)):
        ids = range(start, min(n, start + 4 * block))
        texts = [" ".join(rng.choices(words, k=rng.randint(3, 12))) for _ in ids]
        table = pyarrow.table({"id": ids, "text": texts})
        pyarrow.parquet.write_table(table, folder / f"{number:03d}.parquet", row_group_size=block)


def start(line):
    return subprocess.Popen([*line, "--quiet"], start_new_session=True)


def wait_for_a_part(folder, process):
    before = len(contents(folder))
    while len(contents(folder)) == before and process.poll() is None:
        time.sleep(0.05)


def contents(folder):
    """The content of the files, except for the times and names of temporary files."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("[!._]*.parquet") if path.is_file()}  # fmt: skip


def workers_of(driver):
    """The processes of this driver's cluster in which an encoder works."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if line.startswith(b"ray::") and b"BlockEncoder" in line and driver in ancestors(path.name):
            found.append(int(path.name))
    return found


def ancestors(pid):
    pid = int(pid)
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])
        yield pid


if __name__ == "__main__":
    main()
