"""How the fast core becomes the default: only where it has agreed with the mma core."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mirror_train.loss import cuda_check, cuda_device
from mirror_train.loss.cuda_check import Case, disagreement

compiled = pytest.mark.compiled
CPU = torch.device("cpu")
CASES = [
    Case(70, 40, torch.float32, 0.04, hard=9, grouped=True, panel_tiles=1, logsumexp_tiles=1),
    Case(40, 70, torch.bfloat16, 0.01, "one_way"),
    # An odd number of tiles across, and an even one of dimensions: tma takes two at once.
    Case(150, 140, torch.bfloat16, 0.04, hard=40, panel_tiles=9, logsumexp_tiles=3),
    Case(30, 300, torch.float16, 0.04),  # sums 192 wide
]
# Several waves, of split operands and not.
WAVES = [
    CASES[0],
    Case(150, 140, torch.bfloat16, 0.04, hard=40, panel_tiles=4, logsumexp_tiles=2),
]
AGREES = (0, '{"failure": null}', "")
DIFFERS = (1, '{"failure": "z1 differs by 1.0e-01"}', "")


@pytest.fixture(autouse=True)
def no_core_named(monkeypatch):
    monkeypatch.setenv(cuda_device.VARIABLE, "mma")  # so that it is restored afterwards
    monkeypatch.delenv(cuda_device.VARIABLE)


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(cuda_device.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def forget(monkeypatch):
    """forget() does what the end of the process does."""

    def forget():
        monkeypatch.setattr(cuda_device, "_settled", set())
        monkeypatch.setattr(cuda_device, "_not_before", {})

    forget()
    return forget


@pytest.fixture
def extension(monkeypatch, tmp_path, forget, now):
    """An extension on a card of compute capability 9.0; `trusted` lists devices."""
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    card = SimpleNamespace(uuid="GPU-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    (tmp_path / "_cuda.so").write_text("one build")
    trusted = []
    return SimpleNamespace(
        __file__=str(tmp_path / "_cuda.so"),
        card=card,
        tma_obstacle=lambda device: "",
        trust_tma=trusted.append,
        trusted=trusted,
    )


@pytest.fixture
def child(monkeypatch):
    """Replaces the process that checks; its calls, and what it does each time."""
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


@compiled
@pytest.mark.full
def test_the_cores_agree(emulation):
    assert disagreement(CPU, CASES, emulation) is None


@compiled
@pytest.mark.full
@pytest.mark.parametrize("case", WAVES, ids=["split", "whole"])
@pytest.mark.parametrize("kernel", ["logsumexp_tiles", "weights_tiles", "accumulate_tiles"])
@pytest.mark.parametrize(
    "fault", ["nothing", "half", "all but one", "all but one later", "one from elsewhere"]
)
def test_a_tile_that_is_missing_or_wrong_is_found(emulation, monkeypatch, case, kernel, fault):
    """Also where its place holds a plausible number: what mma, or an earlier wave, has left."""
    monkeypatch.setenv("MIRROR_CUDA_EMULATION_FAULT", f"{kernel} {fault}")
    assert "differs by" in str(disagreement(CPU, [case], emulation))


@compiled
@pytest.mark.full
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
        if core == "tma":
            calls.append(core)
            results[0] = wrong(results[0], len(calls))
        return results

    monkeypatch.setattr(cuda_check, "_solve", altered)
    assert message in disagreement(CPU, CASES[:1], emulation)


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (None, {"failure": None}),
        (RuntimeError("launch failed\nand more"), {"failure": "launch failed"}),
        (torch.OutOfMemoryError("CUDA out of memory"), None),
        (RuntimeError("logsumexp: cudaErrorMemoryAllocation, ..."), None),
    ],
)
def test_what_the_check_says(monkeypatch, capsys, error, printed):
    def check(device, cases):
        if error is not None:
            raise error

    monkeypatch.setattr(cuda_check, "disagreement", check)
    monkeypatch.setattr(cuda_check, "_start", lambda device: None)
    monkeypatch.setattr("sys.argv", ["cuda_check"])
    if printed is None:
        with pytest.raises(RuntimeError):
            cuda_check.main()
        assert capsys.readouterr().out == ""
    else:
        assert cuda_check.main() == int(error is not None)
        assert json.loads(capsys.readouterr().out) == printed


def test_the_fast_core_becomes_the_default_after_one_check(extension, child, forget):
    calls = child(AGREES)
    for _ in range(2):
        cuda_device.settle_core(extension, 3)
    assert extension.trusted == [3]
    assert [command[-2:] for command in calls] == [["mirror_train.loss.cuda_check", "3"]]
    forget()
    cuda_device.settle_core(extension, 3)
    assert extension.trusted == [3, 3]
    assert len(calls) == 1  # the verdict is kept on disk


@pytest.mark.parametrize("changed", ["card", "extension"])
def test_a_verdict_holds_for_one_card_and_one_extension(extension, child, forget, changed):
    calls = child(DIFFERS, AGREES)
    cuda_device.settle_core(extension, 0)
    assert not extension.trusted
    if changed == "card":
        extension.card.uuid = "GPU-2"
    else:
        with Path(extension.__file__).open("a") as file:
            file.write("another build")
    forget()
    cuda_device.settle_core(extension, 0)
    assert extension.trusted == [0]
    assert len(calls) == 2


def test_an_empty_name_is_no_name(extension, child, monkeypatch):
    """As in the extension, where the mma core would otherwise stay the default in silence."""
    child(AGREES)
    monkeypatch.setenv(cuda_device.VARIABLE, "")
    cuda_device.settle_core(extension, 0)
    assert extension.trusted == [0]


@pytest.mark.parametrize(
    ("result", "reason", "kept"),
    [
        (DIFFERS, "z1 differs by 1.0e-01", True),
        ((-11, "", ""), "ended by signal 11", True),
        (subprocess.TimeoutExpired("check", 1), "no result after 120 seconds", False),
    ],
)
def test_mma_stays_the_default_after_a_failure(
    extension, child, caplog, forget, result, reason, kept
):
    calls = child(result)
    for _ in range(2):
        cuda_device.settle_core(extension, 0)
    assert not extension.trusted
    assert len(calls) == 1
    assert reason in caplog.text
    forget()
    cuda_device.settle_core(extension, 0)
    assert len(calls) == (1 if kept else 2)


@pytest.mark.parametrize(
    "result",
    [
        (1, "", "Traceback\ntorch.OutOfMemoryError: CUDA out of memory\n"),
        (1, "", "ModuleNotFoundError: No module named 'torch'"),
        (-9, "", ""),
        OSError("no such program"),
    ],
)
def test_no_verdict_is_asked_for_again(extension, child, caplog, now, result):
    calls = child(result, AGREES)
    for _ in range(3):
        cuda_device.settle_core(extension, 0)
    assert (len(calls), extension.trusted) == (1, [])
    assert "cannot check its fast core tma yet" in caplog.text
    now[0] += 601
    cuda_device.settle_core(extension, 0)
    assert (len(calls), extension.trusted) == (2, [0])


def test_nothing_is_checked_without_need(extension, child, monkeypatch):
    calls = child(AGREES)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    cuda_device.settle_core(extension, 0)  # may be checked later
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setenv(cuda_device.VARIABLE, "mma")
    cuda_device.settle_core(extension, 0)
    monkeypatch.delenv(cuda_device.VARIABLE)
    assert not calls
    extension.tma_obstacle = lambda device: "built without code for sm_90"
    cuda_device.settle_core(extension, 0)
    assert not calls
    assert not extension.trusted


def test_a_folder_that_cannot_be_written_costs_a_check_alone(extension, child, tmp_path):
    child(AGREES)
    (tmp_path / "cache").write_text("a file")
    cuda_device.settle_core(extension, 0)
    assert extension.trusted == [0]


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="has an NVIDIA card")
def test_the_check_itself_gives_no_verdict_without_a_card(monkeypatch):
    monkeypatch.setattr(cuda_device, "_SECONDS", 600)
    with pytest.raises(cuda_device._NoVerdictError):
        cuda_device._check(0)
