"""Run a function in a process of its own: it gets a task and returns a JSON object.

When the child ends, its memory is freed; if it is killed, the parent survives. The child's standard
input stays open while it runs. When the parent ends, even by kill -9, that input is closed, and the
child ends, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

from mirror_rt.system import KILLED

T = TypeVar("T")


def start_child(
    *, stderr: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that waits for a task; the caller has to kill it if an exception occurs.

    The file `stderr` gets everything that it prints. Both arguments are the parent's own for None.
    """
    return subprocess.Popen(
        # -P keeps a torch.py in the working folder from being imported as torch.
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        process_group=0,  # Ctrl-C only reaches the parent, which then ends the child
    )


def give_task(
    process: subprocess.Popen[bytes], function: Callable[[T], dict[str, Any]], task: T
) -> None:
    """Send a function of a module and its task, both pickled, to a process of `start_child`."""
    assert process.stdin is not None  # it is a pipe
    with contextlib.suppress(BrokenPipeError):  # it has ended already, as `read_reply` will report
        pickle.dump((function, task), process.stdin)
        process.stdin.flush()


def read_reply(process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Wait for the function's result; return None if the process ended without one."""
    assert process.stdout is not None  # it is a pipe
    reply = process.stdout.read()
    if reply.endswith(b"\n"):
        found: dict[str, Any] = json.loads(reply)
        return found
    process.wait()
    return None


def how_it_ended(process: subprocess.Popen[bytes], *, advice: str = "", said: str = "") -> str:
    """Return a message that says how a process without a reply ended.

    `advice` is added if it was killed, most likely for lack of memory, and `said`, its own error
    message, if it ended by itself.
    """
    code = process.returncode
    if code >= 0:
        return f"its process ended with code {code}" + f": {said}" * bool(said)
    hint = f"; out of memory, most likely{advice}" if code == KILLED else ""
    return f"its process was ended by signal {-code}, {signal.strsignal(-code)}{hint}"


def main() -> None:
    """Do the task that standard input gives, and reply with a line of JSON on standard output."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)  # anything else that is printed goes to standard error
        function, task = pickle.load(sys.stdin.buffer)  # safe, since only the parent writes here
        end_with_parent(lambda: os.read(0, 1))  # the parent sends nothing after the task
        channel.write(json.dumps(function(task)) + "\n")


def end_with_parent(wait: Callable[[], object]) -> None:
    """Exit as soon as `wait`, run in a thread, returns: nobody waits for results any more."""

    def watch() -> None:
        wait()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
