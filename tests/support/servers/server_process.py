"""Run `mirror-rt serve` in a process of its own, and send requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from json_files import change


class ServerProcess:
    """A server at a free port; its log is kept, as the operator would see it.

    With `log_to`, the log is written to that file instead.
    """

    def __init__(self, *arguments: object, log_to: str | None = None, **environment: str) -> None:
        line = [sys.executable, "-m", "mirror_rt.cli", "serve", *map(str, arguments)]
        self._held = contextlib.ExitStack()
        self.port = 0 if log_to is None else self._held.enter_context(held_port())
        with contextlib.ExitStack() as stack:
            log = subprocess.PIPE if log_to is None else stack.enter_context(Path(log_to).open("w"))
            self.process = subprocess.Popen(
                [*line, "--port", str(self.port), "--log-format", "json", "--threads", "1"],
                stderr=log, stdout=subprocess.DEVNULL, text=True, env=os.environ | environment,
            )  # fmt: skip
        self.log: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        assert self._listening.wait(60), self.lines
        assert self.port, self.lines
        until = time.monotonic() + 60
        while not self._is_ready():
            assert time.monotonic() < until, self.lines
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError):  # no log tells when it listens
            return self.get("/ready")[0] == 200
        return False

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append(line)
            if found := re.search(r"listening at https?://[^ ]*:(\d+)", line):
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        return self._exchange("GET", path, None, headers or {})

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Post a body (bytes are sent unchanged); return the status and the JSON of the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._exchange("POST", path, data, headers or {})

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        connection = self.connect()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        is_json = response.getheader("content-type", "").startswith("application/json")
        return response.status, json.loads(content) if is_json else content

    def send(self, data: bytes) -> bytes:
        """Send bytes; return everything that comes back until the server closes the connection."""
        with self.socket() as connection:
            connection.sendall(data)
            return read_all(connection)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(10)
        self._held.close()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code


@contextlib.contextmanager
def running(*arguments: object, **environment: str) -> Iterator[ServerProcess]:
    """Run a server that must end well, and log no traceback and no key."""
    server = ServerProcess(*arguments, **environment)
    try:
        server.wait_until_ready()
        yield server
    finally:
        code = server.stop()
    assert code == 0, server.lines
    secret = environment.get("MIRROR_RT_SERVE_API_KEYS", "Traceback")
    assert not [line for line in server.lines if "Traceback" in line or secret in line]


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Give a port that no other process gets: bound here, for one who listens with SO_REUSEADDR."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def make_pack(
    folder: Path,
    bundles: dict[str, Path],
    default: str,
    prompts: dict[str, dict[str, str]] | None = None,
) -> Path:
    """Make a pack of copies of bundles; the name of each becomes its language."""
    import shutil

    from mirror_rt.bundle.pack_index import PackedBundle, PackIndex

    entries = {}
    for name, bundle in bundles.items():
        shutil.copytree(bundle, folder / name)
        path = folder / name / "mirror.json"
        manifest = json.loads(path.read_text()) | {"language": name}
        if prompts and name in prompts:
            manifest["prompts"] = prompts[name]
        path.write_text(json.dumps(manifest))
        entries[name] = PackedBundle.describe(folder, name, {})
    PackIndex(entries, default).write(folder)
    return folder


def with_prompt(bundle: Path, folder: Path, prompt: str) -> Path:
    """Make a copy that gives other vectors: of texts with something before them."""
    import shutil

    shutil.copytree(bundle, folder)
    change(folder / "mirror.json", prompts={"query": prompt}, default_prompt_name="query")
    return folder


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
