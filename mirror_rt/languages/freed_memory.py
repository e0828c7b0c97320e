"""Give freed memory back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back_memory() -> None:
    """Return free memory to the system, because glibc keeps that of many small objects."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
