"""Two servers behind haproxy, and the acts of an operator."""

from __future__ import annotations

import http.client
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("one", "two")
_OPTIONS = ("--workers", "2", "--threads", "1", "--log-level", "warning")


class Cluster:
    """Servers of a pack, each started again when it ends, and the proxy that clients ask.

    Args:
        folder: an empty folder for links, keys, sockets and logs.
        packs: two packs that are served in turn.

    Attributes:
        port: the port of the proxy.
        key: an API key that the servers accept at first.
    """

    def __init__(self, folder: Path, packs: tuple[Path, Path]) -> None:
        self._folder, self._packs, self._served = folder, [path.resolve() for path in packs], 0
        self.port, *ports = _free_ports(1 + len(NAMES))
        self._ports = dict(zip(NAMES, ports, strict=True))
        self.key = secrets.token_hex(8)
        self._write_keys(self.key)
        self._link(0)
        self._over = threading.Event()
        self._keepers = [threading.Thread(target=self._keep, args=(name,)) for name in NAMES]

    def __enter__(self) -> Cluster:
        for keeper in self._keepers:
            keeper.start()
        text = (ROOT / "deploy/haproxy.cfg").read_text(encoding="utf-8")
        text = text.replace("/run/haproxy", str(self._folder))
        text = text.replace("bind :8080", f"bind 127.0.0.1:{self.port}")
        for name, host in zip(NAMES, ("10.0.0.1", "10.0.0.2"), strict=True):
            text = text.replace(f"{host}:8080", f"127.0.0.1:{self._ports[name]}")
        (self._folder / "haproxy.cfg").write_text(text, encoding="utf-8")
        self._wait(
            lambda: all(self._status(port, "/ready") == 200 for port in self._ports.values())
        )
        line = ["haproxy", "-db", "-f", self._folder / "haproxy.cfg"]
        environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
        self._proxy = subprocess.Popen(line, env=environment)
        self._wait(lambda: self._status(self.port, "/ready") == 200)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._proxy.kill()
        for name in NAMES:
            os.kill(self._process(name), signal.SIGTERM)
        for keeper in self._keepers:
            keeper.join()

    def kill_a_worker(self, number: int) -> None:
        """Kill a worker by SIGKILL: of the one server, then of the other."""
        workers = _children(self._process(NAMES[number % 2]))
        os.kill(workers[number // 2 % len(workers)], signal.SIGKILL)

    def exchange_pack(self) -> None:
        """Let the servers load the other pack, and wait until both serve it."""
        spaces = {name: self._space(name) for name in NAMES}
        self._link(1 - self._served)
        for name in NAMES:
            os.kill(self._process(name), signal.SIGHUP)
        # Several looks, because each may be answered by another worker.
        self._wait(lambda: all(self._space(name) != spaces[name]
                               for name in NAMES for _ in range(8)))  # fmt: skip

    def begin_key_change(self) -> tuple[str, str]:
        """Let a new key hold beside the old one; return both when every worker knows it."""
        old, self.key = self.key, secrets.token_hex(8)
        self._write_keys(old, self.key)
        self._wait(lambda: self._answers_to(self.key, 200))
        time.sleep(2)  # each worker looks at the file once a second; not all have answered, maybe
        return old, self.key

    def end_key_change(self, old: str, new: str) -> None:
        """Let the new key hold alone, and wait until the old one is refused."""
        self._write_keys(new)
        self._wait(lambda: self._answers_to(old, 401))

    def update(self) -> None:
        """Restart both servers by deploy/rolling_update.py.

        Raises:
            subprocess.CalledProcessError: it has failed.
        """
        pid = f"{self._folder}/{{name}}.pid"
        restart = f"o=$(cat {pid}); kill $o; while [ $(cat {pid}) = $o ]; do sleep .1; done"
        subprocess.run(
            [sys.executable, ROOT / "deploy/rolling_update.py", "--socket",
             self._folder / "admin.sock", "--restart", restart],
            check=True, capture_output=True, encoding="utf-8",
        )  # fmt: skip

    def memory(self) -> float:
        """Return the private memory of all processes of the servers in MB."""
        processes = [self._process(name) for name in NAMES]
        for name in NAMES:
            processes += _children(self._process(name))
        return sum(_private_mb(process) for process in processes)

    def complaints(self) -> list[str]:
        """Return the lines of the logs that nobody should find in them."""
        lines = [line for name in NAMES
                 for line in self._log(name).read_text(encoding="utf-8").splitlines()]  # fmt: skip
        return [line for line in lines if "Traceback" in line or "unforeseen" in line]

    def _keep(self, name: str) -> None:
        line = [sys.executable, "-m", "mirror_rt.cli", "serve", self._folder / "pack", "--port",
                str(self._ports[name]), "--api-keys-file", self._folder / "keys",
                *_OPTIONS]  # fmt: skip
        with self._log(name).open("w", encoding="utf-8") as log:
            while not self._over.is_set():
                process = subprocess.Popen(line, stderr=log, stdout=log)
                new = self._folder / f"{name}.new"
                new.write_text(str(process.pid), encoding="utf-8")
                new.replace(self._folder / f"{name}.pid")
                process.wait()

    def _process(self, name: str) -> int:
        return int((self._folder / f"{name}.pid").read_text(encoding="utf-8"))

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _link(self, number: int) -> None:
        new = self._folder / "pack.new"
        new.symlink_to(self._packs[number])
        new.replace(self._folder / "pack")
        self._served = number

    def _write_keys(self, *keys: str) -> None:
        new = self._folder / "keys.new"
        new.touch(0o600)
        new.write_text("".join(f"{key}\n" for key in keys), encoding="utf-8")
        new.replace(self._folder / "keys")

    def _answers_to(self, key: str, status: int) -> bool:
        return all(self._status(port, "/info", key) == status
                   for port in self._ports.values() for _ in range(8))  # fmt: skip

    def _status(self, port: int, path: str, key: str = "") -> int:
        return self._get(port, path, key)[0]

    def _space(self, name: str) -> str:
        status, content = self._get(self._ports[name], "/info?lang=en", self.key)
        found = re.search(rb'"space": ?"([^"]*)"', content)
        return found[1].decode() if found else f"no answer: {status}"

    def _get(self, port: int, path: str, key: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def _wait(self, done: Callable[[], bool], seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {seconds:.0f} s")
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _children(process: int) -> list[int]:
    """Return the workers of a server; none while it ends."""
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    except OSError:
        return []
    return [int(one) for one in text.split()]


def _private_mb(process: int) -> float:
    try:
        found = re.search(
            r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        )
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0
