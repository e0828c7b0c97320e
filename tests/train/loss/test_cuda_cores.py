"""How a fast core becomes the default: only where it has agreed with the mma core."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from mirror_train.loss import cuda_check, cuda_cores
from mirror_train.loss.cuda_check import Case, disagreement
from mirror_train.loss.cuda_waves import Waves

CPU = torch.device("cpu")
CASES = [
    Case(70, 40, torch.float32, 0.04, hard=9, grouped=True, waves=Waves(1, 1)),
    Case(40, 70, torch.bfloat16, 0.01, "one_way"),
    # An odd number of tiles across, and an even one of dimensions: tma takes two at once.
    Case(150, 140, torch.bfloat16, 0.04, hard=40, waves=Waves(9, 3)),
]


@pytest.fixture(autouse=True)
def no_core_named(monkeypatch):
    monkeypatch.setenv(cuda_cores.VARIABLE, "mma")  # so that it is restored afterwards
    monkeypatch.delenv(cuda_cores.VARIABLE)


@pytest.fixture
def extension(monkeypatch):
    """An extension on a card of compute capability 9.0; `trusted` lists (device, core)."""
    monkeypatch.setattr(cuda_cores, "_settled", set())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    trusted = []
    return SimpleNamespace(
        set_device=lambda device: None,
        sm90_obstacle=lambda: "",
        trust_core=lambda *chosen: trusted.append(chosen),
        trusted=trusted,
    )


@pytest.fixture
def child(monkeypatch):
    """Replaces the process that checks; its calls, and what it does for each core."""
    calls = []

    def replace(*results):
        def run(command, **options):
            result = results[len(calls) % len(results)]
            calls.append(command)
            if isinstance(result, Exception):
                raise result
            return subprocess.CompletedProcess(command, *result)

        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return replace


@pytest.mark.parametrize("core", ["wgmma", "tma"])
def test_the_cores_agree(emulation, core):
    assert disagreement(CPU, core, CASES, emulation) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, call: x * 1.0001, "loss differs by 1.0e-04"),
        (lambda x, call: x * torch.nan, "loss differs by nan"),
        (lambda x, call: x + 1e-7 * call, "another result of the same call"),
    ],
)
def test_a_disagreement_is_found(emulation, monkeypatch, wrong, message):
    solve, calls = cuda_check._solve, []

    def altered(kernel, inputs, case, core):
        results = solve(kernel, inputs, case, core)
        if core == "wgmma":
            calls.append(core)
            results[0] = wrong(results[0], len(calls))
        return results

    monkeypatch.setattr(cuda_check, "_solve", altered)
    assert message in disagreement(CPU, "wgmma", CASES[:1], emulation)


def test_the_fastest_core_becomes_the_default_after_one_check(extension, child):
    calls = child((0, "", ""))
    for _ in range(2):
        cuda_cores.settle_core(extension, 3)
    assert extension.trusted == [(3, "tma")]
    assert [command[-3:] for command in calls] == [["mirror_train.loss.cuda_check", "3", "tma"]]


def test_an_empty_name_is_no_name(extension, child, monkeypatch):
    """As in the extension, where the mma core would otherwise stay the default in silence."""
    child((0, "", ""))
    monkeypatch.setenv(cuda_cores.VARIABLE, "")
    cuda_cores.settle_core(extension, 0)
    assert extension.trusted == [(0, "tma")]


def test_wgmma_is_the_default_where_tma_fails(extension, child, caplog):
    child((1, "", "z1 differs by 1.0e-01"), (0, "", ""))
    cuda_cores.settle_core(extension, 0)
    assert extension.trusted == [(0, "wgmma")]
    assert "does not use its fast tma core" in caplog.text


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ((1, "", "Traceback\nCase(...): z1 differs by 1.0e-01\n"), "z1 differs by 1.0e-01"),
        ((-11, "", ""), "exit status -11"),
        (subprocess.TimeoutExpired("check", 1), "no result after 120 seconds"),
        (OSError("no such program"), "no such program"),
    ],
)
def test_mma_stays_the_default_after_a_failure(extension, child, caplog, result, reason):
    calls = child(result)
    for _ in range(2):
        cuda_cores.settle_core(extension, 0)
    assert not extension.trusted
    assert [command[-1] for command in calls] == ["tma", "wgmma"]
    assert reason in caplog.text


def test_nothing_is_checked_without_need(extension, child, monkeypatch):
    calls = child((0, "", ""))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    cuda_cores.settle_core(extension, 0)  # may be checked later
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setenv(cuda_cores.VARIABLE, "mma")
    cuda_cores.settle_core(extension, 0)
    monkeypatch.delenv(cuda_cores.VARIABLE)
    assert not calls
    extension.sm90_obstacle = lambda: "built without code for sm_90"
    cuda_cores.settle_core(extension, 0)
    assert not calls
    assert not extension.trusted


@pytest.mark.skipif(torch.cuda.is_available(), reason="has an NVIDIA card")
def test_the_check_itself_fails_without_a_card():
    assert cuda_cores._failure(0, "tma") is not None
