r"""Restart the servers behind haproxy one after the other, without losing a request.

    python deploy/rolling_update.py --socket /run/haproxy/admin.sock --backend mirror-rt \
        --restart 'ssh {name} systemctl restart mirror-rt'

Of each server, new requests go to the others first; it is restarted once it has answered all of
its own, and gets requests again when /ready says so and haproxy has seen it. If one does not come
back, the update ends there: the rest go on serving as they were. deploy/haproxy.cfg is the other
half. It needs Python 3.8 and nothing else.
"""

from __future__ import annotations

import argparse
import csv
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

_EVERY = 0.1  # seconds between two looks


class UpdateError(Exception):
    """The update cannot begin, or not go on."""


class Proxy:
    """haproxy, by the commands of its socket; `backend` is the one whose servers are meant."""

    def __init__(self, path: str, backend: str) -> None:
        self._path, self._backend = path, backend

    def ask(self, command: str) -> str:
        """Send a command and return the answer, without white space around it."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self._path)
            connection.sendall(command.encode() + b"\n")
            parts = list(iter(lambda: connection.recv(1 << 16), b""))
        return b"".join(parts).decode().strip()

    def addresses(self) -> dict[str, str]:
        """Return HOST:PORT of every server, by name."""
        text = self.ask(f"show servers state {self._backend}")
        _, _, table = text.partition("# ")
        rows = csv.DictReader(table.splitlines(), delimiter=" ")
        found = {row["srv_name"]: f"{row['srv_addr']}:{row['srv_port']}" for row in rows}
        if not found:
            raise UpdateError(f"backend {self._backend}: {text or 'it has no servers'}")
        return found

    def states(self) -> dict[str, dict[str, str]]:
        """Return haproxy's statistics of every server, by name."""
        rows = csv.DictReader(self.ask("show stat").lstrip("# ").splitlines())
        others = ("FRONTEND", "BACKEND")
        return {row["svname"]: row for row in rows
                if row["pxname"] == self._backend and row["svname"] not in others}  # fmt: skip

    def is_up(self, name: str) -> bool:
        """Return whether a server gets requests, and will after the next check as well.

        `UP 1/2` is a server that has failed a check, before its restart for instance: if the check
        under way fails, too, it is down, and the others must not be drained then.
        """
        return self.states()[name]["status"] in ("UP", "no check")

    def is_idle(self, name: str) -> bool:
        """Return whether a server has answered all requests."""
        return int(self.states()[name]["scur"]) == 0

    def set_state(self, name: str, state: str) -> None:
        """Let a server get requests (`ready`) or no more (`drain`)."""
        if answer := self.ask(f"set server {self._backend}/{name} state {state}"):
            raise UpdateError(f"{name}: haproxy does not {state} it: {answer}")


def update(proxy: Proxy, restart: str, ready: str, timeout: float) -> None:
    """Restart every server; UpdateError where one does not come back."""
    addresses = proxy.addresses()
    for name, address in addresses.items():
        others = [other for other in addresses if other != name]
        _update_one(proxy, name, others, restart, ready.replace("{address}", address), timeout)
        print(f"{name} is updated", flush=True)


def _update_one(
    proxy: Proxy, name: str, others: list[str], restart: str, url: str, timeout: float
) -> None:
    _wait(lambda: any(map(proxy.is_up, others)), timeout, f"no other server than {name} is up")
    proxy.set_state(name, "drain")
    _wait(lambda: proxy.is_idle(name), timeout, f"{name} still has requests")
    done = subprocess.run(restart.replace("{name}", name), shell=True, check=False)
    if done.returncode:
        raise UpdateError(f"{name}: the restart ended with {done.returncode}")
    _wait(lambda: _answers(url), timeout, f"{name} is not ready: no 200 from {url}")
    proxy.set_state(name, "ready")
    _wait(lambda: proxy.is_up(name), timeout, f"{name} is ready, and haproxy calls it down")


def _wait(holds: Callable[[], bool], timeout: float, otherwise: str) -> None:
    until = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > until:
            raise UpdateError(f"{otherwise} after {timeout:g} s")
        time.sleep(_EVERY)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=6) as answer:
            return bool(answer.status == 200)
    except OSError:  # not there yet, or 503
        return False


def main() -> int:
    """Update all servers; 1 if one is left drained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--socket", required=True, help="haproxy's `stats socket`, level admin")
    parser.add_argument("--backend", default="mirror-rt", help="the backend of haproxy")
    restart = "a command that restarts the server {name}, and returns when the old one is gone"
    parser.add_argument("--restart", required=True, help=restart)
    parser.add_argument("--ready", default="http://{address}/ready", help="a URL")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each step")
    arguments = parser.parse_args()
    proxy = Proxy(arguments.socket, arguments.backend)
    try:
        update(proxy, arguments.restart, arguments.ready, arguments.timeout)
    except (UpdateError, OSError) as error:
        print(f"error: {error}; what was drained stays so", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
