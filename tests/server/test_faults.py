"""What befalls a server that runs: a full disk, a clock that jumps, files that go away."""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from server_process import read_all, running, until

pytestmark = pytest.mark.full
BODY = {"inputs": "some words of a text"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_the_disk_of_the_log_is_full(bundle):
    """It serves as before, says nothing of what it cannot write, and stops with 0."""
    with running(bundle, log_to="/dev/full") as server:
        assert {server.post("/embed", BODY)[0] for _ in range(50)} == {200}
        assert server.post("/embed", b"{")[0] == 400
        server.process.send_signal(signal.SIGHUP)
        assert server.get("/ready")[0] == 200


# Every time somebody asks, it is another year.
CLOCK = """
import itertools, time
real, years = time.time, itertools.cycle([0, 3, -3, 40, -40])
time.time = lambda: real() + next(years) * 31_557_600
time.time_ns = lambda: int(time.time() * 1e9)
"""


def test_the_clock_jumps(bundle, tmp_path):
    """Limits of time are by a clock that does not; the log says what the clock on the wall does."""
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with running(bundle, "--body-timeout", 1, "--reload-interval", 0.2, PYTHONPATH=path) as server:
        with contextlib.closing(server.connect()) as connection:  # kept alive all the time
            for _ in range(50):
                connection.request("POST", "/embed", json.dumps(BODY), {"X-Request-Timeout": "20"})
                response = connection.getresponse()
                assert (response.status, len(json.loads(response.read())[0])) == (200, 32)
        assert server.post("/embed", BODY, {"X-Request-Timeout": "1e-9"})[0] == 408
        with server.socket() as slow:
            slow.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
            assert b" 408 " in read_all(slow)
        assert server.get("/ready")[0] == 200
        seconds = server.get("/status")[1]["uptime_seconds"]
        assert 0 < seconds < 600
    times = [json.loads(line)["time"] for line in server.lines if line.startswith("{")]
    assert len({moment[:4] for moment in times}) > 3


@pytest.mark.skipif(sys.platform == "win32", reason="files that are in use cannot be replaced")
def test_files_are_replaced_and_removed(bundle_copy, tmp_path):
    """What is loaded serves on; a worker that dies meanwhile comes back when the files do."""
    away = shutil.copytree(bundle_copy, tmp_path / "away")
    with running(bundle_copy, "--workers", 2) as server:
        expected = server.post("/embed", BODY)[1]

        def serves():
            for _ in range(6):  # whichever of the two takes it
                assert server.post("/embed", BODY) == (200, expected)
            assert server.get("/ready")[0] == 200

        def said(words):
            return sum(words in line for line in server.lines)

        for path in [path for path in bundle_copy.rglob("*.onnx*") if path.is_file()]:
            (tmp_path / "new").write_bytes(b"no graph at all")
            (tmp_path / "new").replace(path)
        serves()
        server.process.send_signal(signal.SIGHUP)
        until(lambda: said("has not changed") == 2)  # its manifest, that is
        shutil.rmtree(bundle_copy)
        serves()
        server.process.send_signal(signal.SIGHUP)
        until(lambda: said("the models stay as they were") == 2)
        serves()

        first = re.search(r"worker 1 listens, process (\d+)", "".join(server.lines))
        os.kill(int(first[1]), signal.SIGKILL)
        until(lambda: said("worker 1, process") >= 2)  # it was killed, and then cannot start
        serves()
        away.rename(bundle_copy)
        until(lambda: said("worker 1 listens") == 2)
        serves()
