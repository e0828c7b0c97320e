"""An encoder in production: modest in threads, offline, honest about what runs it, and robust."""

import os
import socket
import sys

import pytest

from mirror_rt import BundleError, Encoder, ProviderError

TEXTS = ["the river", "a road through the old town", "rain"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_follow_the_cpuset_and_rest_between_calls(bundle, command_in_child):
    """The threads of the second encoder come to rest: whoever spins never sleeps."""
    out = command_in_child(
        "import os, time, onnxruntime\n"
        "from pathlib import Path\n"
        "from mirror_rt import Encoder\n"
        "tasks = lambda: list(Path('/proc/self/task').iterdir())\n"
        "state = lambda task: (task / 'stat').read_text().rpartition(')')[2].split()[0]\n"
        "cpus, before = os.sched_getaffinity(0), len(tasks())\n"
        "os.sched_setaffinity(0, {min(cpus)})\n"
        f"Encoder.load({str(bundle)!r}).encode('a')\n"
        "print(len(tasks()) - before)\n"
        "os.sched_setaffinity(0, cpus)\n"
        f"encoder = Encoder.load({str(bundle)!r}, threads=2)\n"
        "encoder.encode(['the old town ' * 30] * 64)\n"
        "while any(state(task) == 'R' for task in tasks() if int(task.name) != os.getpid()):\n"
        "    time.sleep(0.01)\n"
        "print('they rest')",
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
    )
    assert out.splitlines() == ["0", "they rest"]  # with one processor, the caller's thread is all


def test_onnxruntime_reports_nothing(bundle, command_in_child, tmp_path):
    """It would keep the number of this machine in the home folder, to send with its reports."""
    code = (
        "import os; from mirror_rt import Encoder\n"
        f"Encoder.load({str(bundle)!r}, providers='cpu').encode('a')\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    kept = {name: value for name, value in os.environ.items()
            if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}  # fmt: skip
    home = {"HOME": str(tmp_path)}
    assert command_in_child(code, env=kept | home) == "1\n"
    assert list(tmp_path.rglob("*")) == []
    chosen = {"ORT_DISABLE_TELEMETRY": "0"}  # what a user says goes first
    assert command_in_child(code, env=kept | home | chosen) == "0\n"


def test_a_provider_that_is_not_there_is_not_replaced_in_silence(bundle, monkeypatch, caplog):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    for asked, named in (("cuda", "CUDA"), (["NoSuchExecutionProvider"], "NoSuch")):
        with pytest.raises(ProviderError, match=f"{named}ExecutionProvider.*this onnxruntime off"):
            Encoder.load(bundle, providers=asked)
    assert not caplog.messages
    encoder = Encoder.load(bundle, providers="cuda", allow_fallback=True)
    assert encoder.providers == ["CPUExecutionProvider"]
    assert "CUDAExecutionProvider" in caplog.text


def test_nothing_is_asked_of_the_network(bundle, monkeypatch, tmp_path):
    asked = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert Encoder.load(bundle).encode(TEXTS).shape == (3, 32)
    assert Encoder.load(bundle, offline=True).encode(TEXTS).shape == (3, 32)
    with pytest.raises(BundleError):
        Encoder.load("owner/never-downloaded", offline=True)
    assert not asked
