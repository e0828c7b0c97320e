"""deploy/rolling_update.py with haproxy and two servers: no request is lost.

MIRROR_RT_ROLLING_REQUESTS says for how many requests the servers are updated again and again.
"""

import contextlib
import http.client
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from needs import find_haproxy
from paths import ROOT
from server_process import held_port

HAPROXY = find_haproxy()
REQUESTS = int(os.environ.get("MIRROR_RT_ROLLING_REQUESTS", "200"))
CLIENTS = 4
SCRIPT = runpy.run_path(str(ROOT / "deploy/rolling_update.py"))

pytestmark = [pytest.mark.full, pytest.mark.needs("haproxy")]

# Stops the server that is there, as systemd would, and starts another one.
RESTART = """\
import os, signal, subprocess, sys, time
from pathlib import Path

folder, bundle, name, port = Path(sys.argv[1]), *sys.argv[2:]
process = folder / f"{name}.pid"
if process.exists():
    old = int(process.read_text())
    os.kill(old, signal.SIGTERM)
    stat = Path(f"/proc/{old}/stat")
    while stat.exists() and ") Z " not in stat.read_text():
        time.sleep(0.02)
# On a busy machine a request waits rather than being refused (429), which is no loss.
line = [sys.executable, "-m", "mirror_rt.cli", "serve", bundle, "--port", port, "--threads", "1",
        "--max-wait", "60"]
with open(folder / f"{name}.log", "a") as log:
    server = subprocess.Popen(line, stderr=log, stdout=log, start_new_session=True)
process.write_text(str(server.pid))
"""


class Cluster:
    """Two servers behind haproxy, as deploy/haproxy.cfg has it."""

    def __init__(self, folder, bundle):
        self.folder = folder
        self._held = contextlib.ExitStack()
        self.port, *ports = (self._held.enter_context(held_port()) for _ in range(3))
        self.ports = dict(zip(("one", "two"), ports, strict=True))
        (folder / "restart.py").write_text(RESTART)
        self.restart = (
            shlex.join([sys.executable, f"{folder}/restart.py", str(folder), str(bundle)])
            + " {name} "
        )
        text = (
            (ROOT / "deploy/haproxy.cfg")
            .read_text()
            .replace("/run/haproxy", str(folder))
            .replace(":8080\n    default_backend", f"127.0.0.1:{self.port}\n    default_backend")
        )
        for name, host in (("one", "10.0.0.1"), ("two", "10.0.0.2")):
            text = text.replace(f"{host}:8080", f"127.0.0.1:{self.ports[name]}")
            subprocess.run(self.line(name), shell=True, check=True)
        (folder / "haproxy.cfg").write_text(text)
        with (folder / "haproxy.log").open("w") as log:
            line = [HAPROXY, "-db", "-f", folder / "haproxy.cfg"]
            self.proxy = subprocess.Popen(line, stderr=log, stdout=log)

    def line(self, name):
        return self.restart.replace("{name}", name) + str(self.ports[name])

    def close(self):
        self.proxy.kill()
        self.proxy.wait()
        for path in self.folder.glob("*.pid"):
            os.kill(int(path.read_text()), signal.SIGKILL)
        self._held.close()

    def update(self, *more):
        """Run the script; its restart command finds the port of a server by its name."""
        ports = " ".join(f"{name}={port}" for name, port in self.ports.items())
        restart = f"set -- {ports}; for p in $@; do case $p in {{name}}=*) " + (
            f"{self.restart} ${{p#*=}};; esac; done"
        )
        line = [sys.executable, ROOT / "deploy/rolling_update.py", "--socket",
                self.folder / "admin.sock", "--restart", restart, *more]  # fmt: skip
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)

    def wait(self):
        """Wait until haproxy has seen both: it sends a request to one that it believes is up."""
        proxy = SCRIPT["Proxy"](str(self.folder / "admin.sock"), "mirror-rt")
        until = time.monotonic() + 600  # however busy the machine is
        while not self.are_up(proxy):
            assert time.monotonic() < until
            time.sleep(0.1)

    def are_up(self, proxy):
        try:
            states = proxy.states().values()
        except OSError:  # haproxy itself is not there yet
            return False
        # Before the first check of a server haproxy calls it up.
        return {(one["status"], one["check_status"]) for one in states} == {("UP", "L7OK")}


@pytest.mark.parametrize(
    ("status", "up"),
    [("UP", True), ("no check", True), ("UP 1/2", False), ("DOWN 1/2", False), ("DRAIN", False)],
)
def test_a_server_that_failed_its_last_check_is_not_up(monkeypatch, status, up):
    """If the next one fails, too, it is down; the others must not be drained meanwhile."""
    table = f"# pxname,svname,status\nmirror-rt,one,{status}\nmirror-rt,BACKEND,UP\n"
    monkeypatch.setattr(SCRIPT["Proxy"], "ask", lambda *_: table)
    assert SCRIPT["Proxy"]("admin.sock", "mirror-rt").is_up("one") is up


@pytest.fixture
def cluster(tmp_path, bundle):
    cluster = Cluster(tmp_path, bundle)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.close()


class Load:
    """Clients that keep their connections and send one request after the other."""

    def __init__(self, port):
        self.answered, self.lost = [0] * CLIENTS, []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(port, i)) for i in range(CLIENTS)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, port, i):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while not self._over.is_set():
            try:
                body = json.dumps({"inputs": [f"text {i}", "river"]})
                connection.request("POST", "/embed", body)
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200 or len(json.loads(body)) != 2:
                    self.lost.append(f"{answer.status}: {body[:200]!r}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.lost.append(repr(error))
                connection.close()
            self.answered[i] += 1
        connection.close()


def test_no_request_is_lost(cluster):
    """Every server is another process afterwards, and none of the requests meanwhile has failed."""
    before = {name: (cluster.folder / f"{name}.pid").read_text() for name in cluster.ports}
    updates = 0
    with Load(cluster.port) as load:
        while updates == 0 or sum(load.answered) < REQUESTS:
            done = cluster.update()
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines() == ["one is updated", "two is updated"]
            updates += 1
    print(f"{updates} updates, {sum(load.answered)} requests, {len(load.lost)} lost")  # noqa: T201
    log = (cluster.folder / "haproxy.log").read_text()
    assert not load.lost, f"{Counter(load.lost)} were lost; haproxy has seen:\n{log}"
    for name, process in before.items():
        assert (cluster.folder / f"{name}.pid").read_text() != process


def test_one_that_does_not_come_back_ends_the_update(cluster):
    """The other one goes on as it was."""
    untouched = (cluster.folder / "two.pid").read_text()
    with Load(cluster.port) as load:
        cluster.restart = f"kill -9 $(cat {cluster.folder}/{{name}}.pid); sleep 0.3; : "
        done = cluster.update("--timeout", "2")
        assert done.returncode == 1
        assert "error: one is not ready: no 200 from http://127.0.0.1:" in done.stderr
    assert (load.lost, sum(load.answered) > 0) == ([], True)
    assert (cluster.folder / "two.pid").read_text() == untouched
    (cluster.folder / "one.pid").unlink()
