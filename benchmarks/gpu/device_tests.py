"""Run pytest on a machine with other versions of everything; the exit status is 1 if no test ran.

    python benchmarks/gpu/device_tests.py --json FILE [--seconds 30] [--device cpu] TEST ...

What else is given goes to pytest. Warnings of other versions are no errors here. The file is
written anew before and after each test, with the name of the one that runs, of all that failed, the
reasons why others were skipped, and the slowest. A test that takes longer than --seconds is named
as `hung`, and ends the process, for nothing else ends a kernel that hangs.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

import json

from helpers import write_whole

ROOT = Path(__file__).resolve().parents[2]
_SLOWEST = 5


class Recorder:
    """Records the outcome of every test, and ends the process if one does not end."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        self.passed = 0
        self.failed: list[str] = []
        self.skipped: dict[str, int] = {}
        self.took: dict[str, float] = {}
        self.timer = threading.Timer(0, self._end)
        self.stderr = os.dup(2)  # pytest takes the other

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(running=nodeid)
        self.timer = threading.Timer(self.seconds, self._end, [nodeid])
        self.timer.daemon = True
        self.timer.start()

    def pytest_runtest_logfinish(self) -> None:
        self.timer.cancel()
        self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        elif report.when == "call":
            self.passed += 1

    def write(self, **more: str) -> None:
        slowest = sorted(self.took.items(), key=lambda item: -item[1])[:_SLOWEST]
        found = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped,
                 "slowest_s": dict(slowest)}  # fmt: skip
        write_whole(self.path, json.dumps(found | more))

    def _end(self, nodeid: str = "") -> None:
        self.failed.append(nodeid)
        self.write(hung=nodeid)
        os.write(self.stderr, f"{nodeid} does not end after {self.seconds:.0f} s\n".encode())
        faulthandler.dump_traceback(self.stderr)
        os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments, rest = parser.parse_known_args()
    recorder = Recorder(arguments.json, arguments.seconds)
    # The installed packages must be tested, not the folders of this clone.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
    options = ["-v", "-rs", "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    options += ["-o", "filterwarnings=default", "-o", "addopts=--import-mode=importlib"]
    options += ["-m", "gpu"] if arguments.device == "cuda" else []
    status = int(pytest.main([*options, *rest], plugins=[recorder]))
    if status == 0 and recorder.passed == 0:
        print("no test ran")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
