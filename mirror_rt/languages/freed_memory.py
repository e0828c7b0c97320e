"""Freed memory, given back to the system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Let the system have what is free: glibc keeps what many small objects leave."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
