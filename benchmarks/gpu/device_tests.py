"""Run pytest on a machine with other versions of everything; the exit status is 1 if no test ran.

    python benchmarks/gpu/device_tests.py --json FILE TEST ... [further arguments of pytest]

Warnings of other versions are no errors here. After each test the file is written anew, with the
names of all tests that failed, and the reasons why others were skipped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    """Records the outcome of every test."""

    def __init__(self, path: Path) -> None:
        self.path, self.passed = path, 0
        self.failed: list[str] = []
        self.skipped: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        elif report.when == "call":
            self.passed += 1
        else:
            return
        found = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        self.path.write_text(json.dumps(found))


def main() -> int:
    flag, path, *rest = sys.argv[1:]
    if flag != "--json":
        sys.exit(__doc__)
    recorder = Recorder(Path(path))
    # The installed packages must be tested, not the folders of this clone.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
    options = ["-q", "-rs", "-m", "gpu", "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    options += ["-o", "filterwarnings=default", "-o", "addopts=--import-mode=importlib"]
    status = int(pytest.main([*options, *rest], plugins=[recorder]))
    if status == 0 and recorder.passed == 0:
        print("no test ran")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
