"""What tests/elsewhere.sh changes is changed: in every process, and nothing else."""

import os
import subprocess
import sys

import pytest

from mirror_rt import _core
from paths import TESTS

pytestmark = pytest.mark.full
FOLDER = TESTS / "support" / "elsewhere"
SHOW_SETS = "from mirror_rt import _core as c; print(*c.engine_instruction_sets())"
SHOW_PRECISION = """
import torch
from mirror_train.compute.precision import resolve_precision
print(resolve_precision("auto", torch.device("cpu")))
"""
SHOW_RUN = """
import time
from mirror_rt.inference.bundle_model import BundleModel
slept = []
time.sleep = slept.append
print(BundleModel.run_batch.__module__)
"""


def shown(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(FOLDER)} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", _core.engine_instruction_sets())
def test_the_engine_is_held_to_an_instruction_set(name):
    sets = _core.engine_instruction_sets()
    assert shown(SHOW_SETS, ELSEWHERE_ISA=name) == sets[: sets.index(name) + 1]
    assert shown(SHOW_SETS) == sets


@pytest.mark.parametrize(("has", "precision"), [("1", "bf16"), ("0", "fp32")])
def test_mixed_precision_is_forced(has, precision):
    assert shown(SHOW_PRECISION, ELSEWHERE_BF16=has) == [precision]


def test_a_package_is_not_there():
    found = "from importlib.util import find_spec; print(find_spec('yaml') is not None)"
    assert shown(found, ELSEWHERE_WITHOUT="yaml") == ["False"]


def test_a_bundle_is_slower():
    assert shown(SHOW_RUN, ELSEWHERE_SLOWER="10") == ["sitecustomize"]
    assert shown(SHOW_RUN) == ["mirror_rt.inference.bundle_model"]
