"""The native code under address and undefined-behaviour sanitizers, with every instruction set.

MIRROR_RT_FUZZ sets the number of tables, 100 unless set; there are ten times as many shapes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from native_build import build_sanitized
from paths import TESTS

pytestmark = [pytest.mark.full, pytest.mark.compiled]
TABLES = int(os.environ.get("MIRROR_RT_FUZZ", "100"))
FAMILIES = ["bert", "albert", "mpnet", "modernbert", "gemma3_text", "deberta-v2"]
OPTIONS = {
    "detect_leaks": 0,  # of the interpreter
    # Memory that nothing wrote holds NaN.
    "max_malloc_fill_size": 1 << 30,
    "malloc_fill_byte": 255,
    "hard_rss_limit_mb": 3000,
    "allocator_may_return_null": 1,
}


def library(name):
    """The path of a run-time library of g++; None if it has none."""
    command = ["g++", f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).is_absolute() else None


@pytest.fixture(scope="module")
def fuzz():
    """fuzz(count, *bundles) runs tests/support/compiled/native_fuzz.py; returns what it says."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip("needs g++ on Linux")
    # The interpreter is not made for the sanitizer, which must then be the first library of all.
    preloaded = [library("libasan.so"), library("libstdc++.so")]
    if None in preloaded:
        pytest.skip("g++ has no libasan")
    core = build_sanitized()

    def run(count, *bundles):
        environment = os.environ | {
            "LD_PRELOAD": " ".join(preloaded),
            "ASAN_OPTIONS": ":".join(f"{key}={value}" for key, value in OPTIONS.items()),
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONPATH": str(TESTS / "support"),
        }
        script = TESTS / "support" / "compiled" / "native_fuzz.py"
        command = [sys.executable, script, core, str(count), "0", *bundles]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
        return done.stdout

    return run


def test_encoders_losses_and_searches_of_any_shape(fuzz):
    assert f"{TABLES * 10:,} shapes" in fuzz(TABLES * 10)


def test_any_table(fuzz, tiny_bundle, tiny_bert, tmp_path):
    from mirror_export import ExportConfig, export_bundle
    from mirror_export.pack.mapped_bundle import copy_mapped

    export_bundle(ExportConfig(str(tiny_bert), tmp_path / "max", pooling="max"))
    copy_mapped(tmp_path / "max", tmp_path / "aligned", np.eye(32)[::-1], ["a river"])
    bundles = [*map(tiny_bundle, FAMILIES), tmp_path / "max", tmp_path / "aligned"]
    assert f"{TABLES:,} tables, of which" in fuzz(TABLES, *bundles)
