"""Serve as one of several processes at one address: `python -m mirror_rt.server.process.worker`.

`Supervisor` starts it with the task on standard input. It ends when that input ends, so that it
never outlives its parent. It reports on standard output, in one JSON object per line, that it is
listening, or why it cannot.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from mirror_rt.errors import NO_MEMORY, ConfigError, MirrorError, lacks_memory
from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.http.app import create_app
from mirror_rt.server.monitoring.logs import configure_logging
from mirror_rt.server.process.uvicorn_server import run_app


def main() -> int:
    """Serve until SIGTERM, or until standard input ends."""
    reports = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that a library's prints are no reports
    # The parent alone writes to standard input: the task, and nothing after it.
    task: tuple[list[str], ServerConfig, ListenConfig, int] = pickle.load(sys.stdin.buffer)
    listen = task[2]
    orphaned = threading.Event()
    threading.Thread(target=_end_with_parent, args=(orphaned,), daemon=True).start()
    configure_logging(level=listen.log_level, as_json=listen.log_format == "json")

    def report(**values: Any) -> None:
        os.write(reports, json.dumps(values).encode() + b"\n")

    try:
        _serve(*task, lambda: report(listening=True))
    except (MirrorError, OSError) as error:
        usage = isinstance(error, ConfigError)
        report(error=" ".join(str(error).split())[:2000], usage=usage)
        return 2 if usage else 1
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        report(error=NO_MEMORY, usage=False)
        return 1
    finally:
        if orphaned.is_set():  # then nobody else removes the folder
            shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)
    return 0


def _serve(
    source: list[str], config: ServerConfig, listen: ListenConfig, descriptor: int,
    on_listening: Callable[[], None],
) -> None:  # fmt: skip
    app = create_app(source, config)
    try:
        # The other workers serve meanwhile: no request should meet a worker that is not warm.
        app.state.registry.wait_until_warm()
    except BaseException:
        app.state.registry.close()
        raise
    with socket.socket(fileno=descriptor) as listener:
        run_app(app, listen, listener, on_listening)


def _end_with_parent(orphaned: threading.Event) -> None:
    # Not sys.stdin: the interpreter would wait for its lock when it exits.
    while os.read(0, 4096):
        pass
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    code = main()
    # Skip the interpreter's shutdown, which waits for threads and frees memory slowly.
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
