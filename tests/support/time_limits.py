"""Limits on what a call may take."""

import contextlib
import signal
import time

import pytest


@contextlib.contextmanager
def within_a_second():
    """A second of processor time, which neighbours do not change; what hangs ends after 20."""

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
