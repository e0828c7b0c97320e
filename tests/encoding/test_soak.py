"""Memory stays flat over traffic of every kind: benchmarks/encode/soak.py, on a tiny model.

Most of the time is idle gaps. MIRROR_RT_SOAK_SECONDS says for how long (15); tests/run.sh soaks for
60 seconds beside lint and types, and leaves it out (0) of the tests.
"""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from paths import ROOT

SOAK = ROOT / "benchmarks" / "encode" / "soak.py"
SECONDS = float(os.environ.get("MIRROR_RT_SOAK_SECONDS", "15"))


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert report["counts"]["texts"] > 10 * SECONDS
    assert min(report["counts"][name] for name in ("refused", "cancelled", "late")) > 0
    assert "unexpected" not in report["counts"]
    assert len(report["resident_mb"]) > 2 * SECONDS
    assert (tmp_path / "soak.png").stat().st_size > 1000


def test_a_leak_is_seen_and_noise_is_not(soak, rng):
    times = np.arange(0, 60, 0.25)
    noise = 300 + rng.normal(0, 2, len(times))
    warming = 40 * np.minimum(times, 15) / 15
    assert abs(soak.growth_mb(times, noise + warming)) < 2
    assert soak.growth_mb(times, noise + warming + times * 0.2) == pytest.approx(8, abs=2)
    with pytest.raises(SystemExit, match="too short"):
        soak.growth_mb(times[:4], noise[:4])
