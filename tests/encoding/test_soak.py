"""Memory stays flat over traffic of every kind: benchmarks/encode/soak.py, on a tiny model.

Most of the time is idle gaps. MIRROR_RT_SOAK_SECONDS says for how long (15); tests/run.sh soaks for
60 seconds beside lint and types, and leaves it out (0) of the tests.
"""

import json
import os
import subprocess
import sys

import pytest

from paths import ROOT

SOAK = ROOT / "benchmarks" / "encode" / "soak.py"
SECONDS = float(os.environ.get("MIRROR_RT_SOAK_SECONDS", "15"))


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_a_days_traffic(bundle, tmp_path):
    if SECONDS <= 0:
        pytest.skip("MIRROR_RT_SOAK_SECONDS=0: tests/run.sh soaks beside lint and types")
    limit = 4 if SECONDS >= 60 else 8  # threads and arenas take what they keep in 15 s or so
    line = [sys.executable, SOAK, bundle, "--minutes", SECONDS / 60, "--limit", limit,
            "--idle", 3, "--threads", 1, "--out", tmp_path]  # fmt: skip
    done = subprocess.run(
        list(map(str, line)), capture_output=True, text=True, check=False, timeout=SECONDS + 600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "soak.json").read_text())
    assert report["flat"]
    assert min(report["counts"][name] for name in ("refused", "cancelled", "late")) > 0
    assert "unexpected" not in report["counts"]
    assert (tmp_path / "soak.png").stat().st_size > 1000
