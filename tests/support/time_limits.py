"""Limit the time that a call may take."""

import contextlib
import signal
import time

import pytest


@contextlib.contextmanager
def within_a_second():
    """Allow a second of processor time, which other load does not affect; stop after 20 s."""

    def give_up(*_):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    began = time.thread_time()
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert time.thread_time() - began < 1
