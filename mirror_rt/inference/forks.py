"""Keep forked processes from hanging: they have none of the threads that libraries wait for."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol


class Forgetful(Protocol):
    """Holds objects of a library whose threads are gone in a forked process."""

    def forget(self) -> bool:
        """Drop these objects in a forked process, without freeing them.

        Returns:
            Whether the library waits for its threads at the end of a process.
        """


_held: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_after_fork(holder: Forgetful) -> None:
    """Let a holder forget in every process that is forked from now on."""
    _held.add(holder)


def leak(held: object) -> None:
    """Never free an object: freeing it would wait for its threads to end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _after_fork() -> None:
    holders = list(_held)
    if not holders:
        return
    waits = sum(holder.forget() for holder in holders)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else `tokenizers` waits for its own
    # onnxruntime and OpenVINO also wait for their threads at the end of a process that calls exit()
    # (gunicorn's workers do, multiprocessing does not). Exit handlers run from the last to the
    # first, so this one ends the process before theirs run.
    libc = ctypes.CDLL(None)
    if waits and hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
