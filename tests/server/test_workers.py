"""`mirror-rt serve --workers`: several processes at one port, killed, stopped and reloaded."""

import asyncio
import collections
import concurrent.futures
import contextlib
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from asyncio.subprocess import PIPE
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from mirror_rt import Encoder
from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.resolve import file_states
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.atomic import replace_folder
from mirror_rt.server import ServerConfig, create_app
from mirror_rt.server.models.reload import Reloader
from mirror_rt.server.models.served_models import Source
from mirror_rt.server.monitoring.metrics import Metrics, WorkerCounts
from mirror_rt.server.process import supervisor
from rounding import ANY_BATCH
from server_process import until, with_prompt

TEXT = "some words of a text"


def processes(server):
    """The workers' processes, as the log says, by number; the newest of each."""
    found = re.findall(r"worker (\d+) listens, process (\d+)", "".join(server.lines))
    return {int(number): int(process) for number, process in found}


def alive(process):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Clients:
    """Threads that ask all the time, each on a connection that is kept alive while it can be."""

    def __init__(self, server, count=6, check=lambda answer: None):
        self.server, self.check = server, check
        self.counts = collections.Counter()
        self.ending = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(count)
        self._futures = [self._pool.submit(self._run) for _ in range(count)]

    def _run(self):
        with contextlib.closing(self.server.connect()) as connection:
            while not self.ending.is_set():
                try:
                    if connection.sock is None:
                        connection.connect()
                except OSError:
                    self.counts["refused"] += 1
                    return
                try:
                    connection.request("POST", "/embed", json.dumps({"inputs": TEXT}))
                    response = connection.getresponse()
                    answer = json.loads(response.read())
                except (OSError, http.client.IncompleteRead):
                    self.counts["lost"] += 1
                    connection.close()
                    continue
                self.counts[response.status] += 1
                self.check(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ending.set()
        self._pool.shutdown()
        for future in self._futures:
            future.result()


def test_a_worker_is_killed_and_then_all_are_stopped(bundle, start_server):
    """The others go on, it comes back, counts stay; SIGTERM loses nothing that was accepted."""
    server = start_server(bundle, "--workers", 2)
    first = processes(server)
    assert set(first) == {1, 2}
    with Clients(server) as clients:
        until(lambda: clients.counts[200] > 50)
        os.kill(first[1], signal.SIGKILL)
        until(lambda: processes(server)[1] != first[1])
        count = clients.counts[200]
        until(lambda: clients.counts[200] > count + 50)
    unforeseen = [line for line in server.lines if "unforeseen" in line]
    assert set(clients.counts) <= {200, "lost"}, (clients.counts, unforeseen)
    assert clients.counts["lost"] <= 6  # one a connection, of those to the worker that died
    second = processes(server)
    assert second[2] == first[2]
    assert any("was ended by SIGKILL" in line for line in server.lines)

    text = server.get("/metrics")[1].decode()
    line = 'mirror_rt_request_seconds_count{model="bert",route="/embed",status="200"} '
    counted = float(text.split(line)[1].split("\n")[0])
    assert abs(counted - clients.counts[200]) <= 6  # one a connection, when it died
    assert "mirror_rt_ready 1.0" in text
    lost = re.search(r"by SIGKILL with (\d+) open requests", "".join(server.lines))[1]
    for name, value in (("worker_deaths", 1), ("worker_restarts", 1), ("lost_requests", lost)):
        assert f"mirror_rt_{name}_total {float(value)}\n" in text
    assert "mirror_rt_open_requests 1.0" in text  # this one; none of the dead worker's

    with Clients(server) as clients:
        until(lambda: clients.counts[200] > 50)
        assert server.stop() == 0
    assert clients.counts["lost"] == 0, clients.counts
    assert clients.counts["refused"] == 6
    assert not any(map(alive, second.values()))
    assert not [line for line in server.lines if "Traceback" in line]


def test_the_open_requests_of_a_dead_worker_are_found(tmp_path):
    """In the file of its gauges, which goes; of one that died before it had any there are none."""
    values = MmapedDict(tmp_path / "gauge_livesum_7.db")
    counts = WorkerCounts(tmp_path)
    values.write_value(mmap_key(*["mirror_rt_open_requests"] * 2, [], [], ""), 3, 0)
    values.write_value(mmap_key(*["mirror_rt_waiting_tokens"] * 2, [], [], ""), 5, 0)
    assert (counts.bury(7), counts.bury(7)) == (3, 0)
    (tmp_path / "gauge_livesum_8.db").touch()
    assert counts.bury(8) == 0
    values.close()
    counts.close()


@pytest.mark.full
def test_no_worker_can_start(bundle_copy, command):
    """One line, whichever of them says it."""
    with (bundle_copy / "tokenizer.json").open("a") as file:
        file.write(" ")
    done = command("serve", bundle_copy, "--workers", 2, "--port", 0, "--log-level", "error")
    assert done.returncode == 1
    assert "is damaged: tokenizer.json" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_signal_leaves_the_exit_status_to_asyncio(monkeypatch):
    def takes_it(process):
        raise AssertionError("the exit status was taken")

    async def end():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=PIPE)
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "poll", takes_it)
            supervisor._signal(process, signal.SIGTERM)
        assert await process.wait() == -signal.SIGTERM
        supervisor._signal(process, signal.SIGTERM)  # to none

    asyncio.run(end())


@pytest.mark.full
def test_reload_under_load(bundle, tmp_path, start_server):
    """Every answer is of the old model or of the new; one that is damaged never serves."""
    served = shutil.copytree(bundle, tmp_path / "served")
    other = with_prompt(bundle, tmp_path / "other", "river ")
    damaged = with_prompt(bundle, tmp_path / "damaged", "happy ")
    (damaged / "tokenizer.json").write_text("{}")
    old, new = (Encoder.load(path, threads=1).encode(TEXT) for path in (bundle, other))
    assert np.abs(old - new).max() > 1e-3
    seen = collections.Counter()

    def check(answer):
        which = [i for i, v in enumerate((old, new)) if np.allclose(answer[0], v, atol=ANY_BATCH)]
        seen.update(which or ["neither"])

    server = start_server(served, "--workers", 2)

    def said(words):
        return sum(words in line for line in server.lines)

    with Clients(server, 4, check) as clients:
        until(lambda: seen[0] > 20)
        status = Path(f"/proc/{server.process.pid}/status")
        if status.exists():  # the parent takes what it passes on, whichever worker started last
            blocked = int(re.search(r"SigBlk:\s*(\w+)", status.read_text())[1], 16)
            assert not blocked & (1 << signal.SIGHUP - 1 | 1 << signal.SIGINT - 1)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: said("has not changed") == 2)
        assert seen[1] == 0
        replace_folder(other, served)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: said("was loaded again") == 2)
        was = seen.copy()
        until(lambda: seen[1] > was[1] + 20)
        replace_folder(damaged, served)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: said("the models stay as they were") == 2)
        was = seen.copy()
        until(lambda: seen[1] > was[1] + 20)
        assert seen[0] - was[0] == 0
    found = processes(server).values()
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not any(map(alive, found)))  # they end with their parent
    assert set(clients.counts) == {200}, clients.counts
    assert set(seen) == {0, 1}, seen


def test_reload_by_itself(bundle, tmp_path, caplog, monkeypatch):
    """Every so often it looks; the same complaint is made once; names may come and go."""
    looks = []
    find = Source.find
    monkeypatch.setattr(Source, "find", lambda self: looks.append(0) or find(self))
    served = shutil.copytree(bundle, tmp_path / "served")
    app = create_app(served, ServerConfig(reload_interval=0.02, load=LoadOptions(threads=1)))
    registry = app.state.registry

    def shown(name):
        return re.findall(rf"^{name} (\S+)$", registry.metrics.text().decode(), re.MULTILINE)

    try:
        registry.wait_until_warm()
        old = registry.models.default
        with registry._cache.lease(old) as in_use:
            served.rename(tmp_path / "away")
            until(lambda: "the models stay as they were" in caplog.text)
            until(lambda: shown("mirror_rt_last_reload_successful") == ["0.0"])
            assert shown("mirror_rt_reloads_total.*failed.*") > ["0.0"]
            seen = len(looks)
            until(lambda: len(looks) > seen + 3)
            with_prompt(bundle, served, "river ")
            until(lambda: registry.models.default is not old)
            assert registry.models.default.encoder.manifest.prompts == {"query": "river "}
            assert len(in_use.encoder.encode("it is still open")) == 32
            assert shown("mirror_rt_model_info.*") == ["0.0", "1.0"]  # the model before, and this
        until(lambda: shown("mirror_rt_last_reload_successful") == ["1.0"])
        assert shown("mirror_rt_reloads_total.*ok.*") == ["1.0"]
        said = [record.message for record in caplog.records if "stay as" in record.message]
        assert len(said) == len(set(said)) <= 2  # while it is looked at, the folder may go
    finally:
        registry.close()


def test_a_link_keeps_its_name_where_it_leads_elsewhere(bundle, tmp_path):
    """A model is called what the operator called it, before and after a reload."""
    with_prompt(bundle, tmp_path / "v2", "river ")
    link = tmp_path / "bundle"
    link.symlink_to(shutil.copytree(bundle, tmp_path / "v1"))
    app = create_app(link, ServerConfig(load=LoadOptions(threads=1)))
    registry = app.state.registry
    try:
        registry.wait_until_warm()
        old = registry.models.default
        assert list(registry.models.by_name) == ["bundle"]
        (tmp_path / "new").symlink_to(tmp_path / "v2")
        (tmp_path / "new").replace(link)
        registry.reload()
        until(lambda: registry.models.default is not old)
        assert list(registry.models.by_name) == ["bundle"]
        assert registry.models.default.encoder.manifest.prompts == {"query": "river "}
    finally:
        registry.close()


def test_cuda_graphs_are_not_captured_while_a_model_serves(bundle, caplog):
    config = ServerConfig(load=LoadOptions(cuda_graphs=True))
    models = SimpleNamespace(
        digest="another", files={}, source=Source(bundle, config), by_name=["m"]
    )
    reloader = Reloader([models], None, pytest.fail, Metrics())
    reloader.ask()
    reloader.close()
    assert "the models stay as they were: CUDA graphs are captured while" in caplog.text
    with pytest.raises(ConfigError, match="exclude each other"):
        ServerConfig(reload_interval=1.0, load=LoadOptions(cuda_graphs=True))


def test_workers_load_one_after_another(bundle, tmp_path, monkeypatch):
    """One that waits for its turn serves what it has, and can be stopped."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    models = SimpleNamespace(
        digest="another", files={}, source=Source(bundle, ServerConfig()), by_name=["m"]
    )
    served = []
    with (tmp_path / "reload.lock").open("w") as other_worker:
        fcntl.flock(other_worker, fcntl.LOCK_EX)
        reloaders = [
            Reloader([models], None, lambda *both: served.append(both), Metrics()) for _ in range(2)
        ]
        tries = []
        lock = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", lambda *a: tries.append(0) or lock(*a))
        for reloader in reloaders:
            reloader.ask()
        until(lambda: len(tries) > 4)
        assert not served
        reloaders[0].close()
    until(lambda: served)
    reloaders[1].close()
    assert len(served) == 1


def test_a_file_that_was_written_in_place_is_named(bundle_copy, caplog):
    models = SimpleNamespace(
        digest=digest_of(bundle_copy), files=file_states(bundle_copy), by_name=["m"],
        source=Source(bundle_copy, ServerConfig()),
    )  # fmt: skip
    graph = bundle_copy / "onnx" / "model.onnx"

    def look():
        caplog.clear()
        reloader = Reloader([models], None, pytest.fail, Metrics())
        reloader.ask()
        reloader.close()
        return caplog.text

    other = graph.with_name("other")
    other.write_bytes(graph.read_bytes())
    other.rename(graph)  # whoever has the old file open keeps it
    assert "was written to" not in look()
    models.files = file_states(bundle_copy)
    graph.write_bytes(graph.read_bytes())
    assert f"{graph} was written to while it serves" in look()


@pytest.mark.parametrize("port_is_free", [True, False])
def test_check(port_is_free, bundle_copy, cli, monkeypatch):
    import socket

    monkeypatch.setattr("mirror_rt.server.monitoring.logs.configure_logging", lambda **_: None)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        if port_is_free:
            listener.close()
        done = cli("serve", bundle_copy, "--check", "--port", port, "--workers", 2)
    if not port_is_free:
        assert (done.code, done.out) == (2, "")
        assert f"port {port}: it is taken" in done.err
        return
    assert (done.code, done.err) == (0, "")
    assert done.out == f"could serve bundle-copy at http://127.0.0.1:{port}\n"
    (bundle_copy / "tokenizer.json").write_text("{}")
    done = cli("serve", bundle_copy, "--check", "--port", port)
    assert (done.code, done.out) == (1, "")
    assert "is damaged: tokenizer.json" in done.err


AS_ON_WINDOWS = """
import signal, sys
from pathlib import Path
import pyarrow.parquet, torch.distributed, uvicorn  # which look for their own system
del signal.SIGHUP, signal.SIGKILL, signal.pthread_sigmask
sys.modules.update(fcntl=None, resource=None)
sys.platform = "win32"
import mirror_rt.server.process.serving, mirror_rt.bulk.workers, mirror_export
from mirror_export.pack import staging
from mirror_rt.io.atomic import new_file, new_folder
from mirror_rt.system import interrupts_held
with interrupts_held(), new_file(Path("a"), overwrite=False) as file:
    file.write(b"a")
with new_folder(Path("b"), overwrite=False) as folder:
    (folder / "c").touch()
"""


def test_one_process_needs_nothing_that_windows_lacks(tmp_path):
    subprocess.run([sys.executable, "-c", AS_ON_WINDOWS], check=True, cwd=tmp_path)
    assert (tmp_path / "a").read_bytes() == b"a"
    assert (tmp_path / "b" / "c").exists()
