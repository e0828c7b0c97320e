"""An encoder in production: modest in threads, offline, honest about what runs it, and robust."""

import json
import os
import socket
import sys
import threading

import numpy as np
import pytest

from mirror_rt import BundleError, Encoder, InvalidTextError, ProviderError

TEXTS = ["the river", "a road through the old town", "rain"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_follow_the_cpuset_and_rest_between_calls(bundle, command_in_child):
    threads, burnt = command_in_child(
        "import os, time, onnxruntime\n"
        "from mirror_rt import Encoder\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "cpus = os.sched_getaffinity(0)\n"
        "os.sched_setaffinity(0, {min(cpus)})\n"
        "before = count()\n"
        f"Encoder.load({str(bundle)!r}).encode('a')\n"
        "print(count() - before)\n"
        "os.sched_setaffinity(0, cpus)\n"
        f"encoder = Encoder.load({str(bundle)!r}, threads=2)\n"
        "encoder.encode(['the old town ' * 30] * 64)\n"
        "start = time.process_time()\n"
        "time.sleep(0.4)\n"
        "print(time.process_time() - start)\n",
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
    ).split()
    assert int(threads) == 0  # one processor: the caller's own thread is all
    assert float(burnt) < 0.1


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


def test_cuda_is_not_replaced_in_silence(bundle, monkeypatch, caplog):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ProviderError, match="CUDAExecutionProvider"):
        Encoder.load(bundle, providers="cuda")
    assert not caplog.messages
    encoder = Encoder.load(bundle, providers="cuda", allow_fallback=True)
    assert encoder.providers == ["CPUExecutionProvider"]
    assert "CUDAExecutionProvider" in caplog.text


def test_a_bad_item_spoils_no_neighbour(bundle):
    encoder = Encoder.load(bundle)
    bad = [None, b"bytes", "", "\ud800", 3.5]
    mixed = [item for pair in zip(TEXTS * 2, bad, strict=False) for item in pair]
    vectors = encoder.encode(mixed, errors="nan")
    np.testing.assert_allclose(vectors[::2], encoder.encode((TEXTS * 2)[:5]), atol=1e-5)
    assert np.isnan(vectors[1::2]).all()
    with pytest.raises(InvalidTextError) as caught:
        encoder.encode(mixed)
    assert [i for i, _ in caught.value.items] == [1, 3, 5, 7, 9]
    np.testing.assert_allclose(encoder.encode(TEXTS), vectors[0:6:2], atol=1e-5)  # it lives


def test_several_models_in_a_process(bundle, bundle_copy):
    path = bundle_copy / "mirror.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest |= {"prompts": {"query": "the town "}, "default_prompt_name": "query"}
    path.write_text(json.dumps(manifest))
    folders = [bundle, bundle_copy, bundle]
    encoders = [Encoder.load(folder, threads=1) for folder in folders]
    expected = [Encoder.load(folder).encode(TEXTS) for folder in folders]
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    found = [[] for _ in encoders]

    def work(i):
        for _ in range(5):
            found[i].append(encoders[i].encode(TEXTS))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for vectors, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(vectors, [right] * 5, atol=1e-5)
    encoders[0].close()
    np.testing.assert_allclose(encoders[2].encode(TEXTS), expected[2], atol=1e-5)


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


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (None, "expected str, got NoneType"),
        (b"bytes", "expected str, got bytes"),
        (3, "expected str, got int"),
        ("", "the string is empty"),
        (" \n\t", None),
        ("\ud83d", None),
    ],
)
def test_an_odd_item_is_a_clear_error(bundle, item, reason):
    with pytest.raises(InvalidTextError, match=f"item 1: {reason or ''}"):
        Encoder.load(bundle).encode(["a", item])


@pytest.mark.parametrize("item", ["\0", "a\0b", "x" * 10_000_000, "\u202e", "e\u0301" * 300])
def test_or_a_defined_vector(bundle, item):
    encoder = Encoder.load(bundle)
    encoded = encoder.encode_with_info(["a", item, "b"], errors="nan")
    assert np.isfinite(encoded.embeddings[[0, 2]]).all()
    assert np.isfinite(encoded.embeddings[1]).all() or encoded.token_counts[1] == 0
    assert encoded.truncated[1] == (len(item) > 1000)
