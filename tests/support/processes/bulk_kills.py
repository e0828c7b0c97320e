"""Run `mirror-rt encode --resume` again and again, killing each run a little later."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from fnmatch import fnmatch

from mirror_rt.io.atomic import files_under


def run_with_kills(arguments, kills, *, folder, seed=0, pattern="part-*.npz"):
    """Kill `kills` runs by SIGKILL at random points after some progress; then let one finish.

    Returns the finished process, and for each killed run how many parts were finished before it.
    """
    line = [sys.executable, "-m", "mirror_rt.cli", *map(str, arguments), "--resume", "--quiet"]
    rng = random.Random(seed)
    parts = []
    while len(parts) < kills:
        before = count_parts(folder, pattern)
        with subprocess.Popen(line, start_new_session=True, stderr=subprocess.PIPE) as process:
            # The point lies between loading the model and writing a later part.
            wanted = before + rng.choice([0, 1, 1, 2])
            while count_parts(folder, pattern) < wanted and process.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.05) if wanted else 0.5)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                parts.append(before)
            else:
                break  # the run finished before it was killed
        wait_for_the_end_of(process.pid)
    return subprocess.run(line, capture_output=True, text=True, check=False), parts


def wait_for_the_end_of(group, seconds=600):
    """Wait until no process of the group is left: a killed job must take its workers with it."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            assert time.monotonic() < deadline, f"processes of group {group} are left"
            time.sleep(0.02)


def count_parts(folder, pattern="part-*.npz"):
    return sum(fnmatch(path.name, pattern) for path in files_under(folder))
