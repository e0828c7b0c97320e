"""A function in a process of its own: a task goes in, a JSON object comes out.

The child's memory ends with it, and so does what kills it. Its standard input stays open while it
runs: when the parent ends, if only by kill -9, that input closes, and the child ends too.
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

__all__ = ["give_task", "how_it_ended", "main", "read_reply", "start_child"]

T = TypeVar("T")


def start_child(
    *, stderr: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that waits for a task; whoever starts it kills it on an exception.

    Args:
        stderr: the file for its standard error, and for what it prints; None for the parent's.
        environment: its variables; None for the parent's.
    """
    return subprocess.Popen(
        # -P: a torch.py in the working folder is not torch.
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        process_group=0,  # Ctrl-C reaches the parent alone, which ends the child
    )


def give_task(
    process: subprocess.Popen[bytes], function: Callable[[T], dict[str, Any]], task: T
) -> None:
    """Let a process of `start_child` call a function of a module with a task; both are pickled."""
    assert process.stdin is not None  # it is a pipe
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which `read_reply` says
        pickle.dump((function, task), process.stdin)
        process.stdin.flush()


def read_reply(process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Wait for what the function returned; None where the process ended before it did."""
    assert process.stdout is not None  # it is a pipe
    reply = process.stdout.read()
    if reply.endswith(b"\n"):
        found: dict[str, Any] = json.loads(reply)
        return found
    process.wait()
    return None


def how_it_ended(process: subprocess.Popen[bytes], *, advice: str = "", said: str = "") -> str:
    """Say how a process ended that gave no reply.

    Args:
        process: the process, ended.
        advice: what to do where it was killed, for want of memory most likely.
        said: the last words of a process that ended by itself.
    """
    code = process.returncode
    if code >= 0:
        return f"its process ended with code {code}" + f": {said}" * bool(said)
    hint = f"; out of memory, most likely{advice}" if code == -signal.SIGKILL else ""
    return f"its process was ended by signal {-code}, {signal.strsignal(-code)}{hint}"


def main() -> None:
    """Do the task of standard input; reply with a line of JSON on standard output."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)  # whatever else prints is no reply
        function, task = pickle.load(sys.stdin.buffer)  # of the parent alone
        threading.Thread(target=_end_with_parent, daemon=True).start()
        channel.write(json.dumps(function(task)) + "\n")


def _end_with_parent() -> None:
    """Exit at once when standard input is closed: nobody waits for the reply any more."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
