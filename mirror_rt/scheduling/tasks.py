"""The means of `Encoder.aencode`: a scheduler that all tasks share, or a thread for large calls."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from mirror_rt.scheduling.scheduler import HasPipeline, Scheduler

# A call of more texts than this fills batches by itself, and tokenising it would delay others.
SHARED_TEXTS = 256

T = TypeVar("T")
_schedulers: weakref.WeakKeyDictionary[HasPipeline, Scheduler] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def scheduler_of(encoder: HasPipeline) -> Scheduler:
    """Return the scheduler through which concurrent tasks share an encoder, made on first use.

    It only holds the encoder's pipeline and is closed when the encoder is freed, so that nobody
    has to close it.
    """
    with _lock:
        scheduler = _schedulers.get(encoder)
        if scheduler is None or not scheduler.running:
            scheduler = _schedulers[encoder] = Scheduler(
                encoder, max_waiting_texts=sys.maxsize, max_waiting_tokens=sys.maxsize
            )
            weakref.finalize(encoder, scheduler.close, drain=False)
        return scheduler


async def run_in_thread(work: Callable[[threading.Event], T]) -> T:
    """Run `work` in a thread; its event is set if the task is cancelled."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(work, stop)
    finally:
        stop.set()
