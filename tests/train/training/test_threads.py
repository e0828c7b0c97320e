"""Threads of torch that wait sleep soon, so that two runs at once do not take each other's time."""

import os
import subprocess
import sys

import pytest

SCRIPT = "import mirror_train, torch"


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "count"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_threads_of_torch_look_for_each_other_only_shortly(given, count):
    """As its own runtime says when it is loaded; who sets either variable is followed."""
    unset = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment | given | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch comes with another runtime of OpenMP")
    assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr
