"""Limit the work that a call may do."""

import contextlib
import signal
import sys

import pytest


@contextlib.contextmanager
def little_work(calls: int = 1_000_000):
    """Allow at most `calls` calls of functions, which any machine counts alike; end what hangs.

    Loading a bundle takes 60,000. Ten minutes end what hangs: a pipe that nobody writes to, a loop
    in a library.
    """
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    def give_up(*_):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(600)
    profile = sys.getprofile()
    sys.setprofile(counted)
    try:
        yield
    finally:
        sys.setprofile(profile)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert count < calls, f"{count} calls of functions"
