import contextlib
import re
import threading

import pytest

from mirror_rt import progress
from mirror_rt.progress import describe_seconds, progress_bar, repeatedly, transfer_progress


class Clock:
    """A time that only the test moves: `tick` lets seconds pass, and calls what is repeated."""

    def __init__(self):
        self.now, self.repeated = 0.0, []

    @contextlib.contextmanager
    def repeatedly(self, function, seconds):
        self.repeated.append((function, seconds))
        yield
        self.repeated.remove((function, seconds))

    def tick(self):
        for function, seconds in self.repeated:
            self.now += seconds
            function()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(progress, "repeatedly", clock.repeatedly)
    return clock


def lines_of(capfd):
    return capfd.readouterr().err.splitlines()


def test_a_function_is_called_again_and_again_until_the_block_ends():
    called, threads = threading.Semaphore(0), set()

    def call():
        threads.add(threading.current_thread())
        called.release()

    with repeatedly(call, 0.001):
        assert all(called.acquire(timeout=60) for _ in range(3))
    (thread,) = threads
    assert not thread.is_alive()


def test_lines_say_how_far_the_work_is_while_a_step_lasts(clock, capfd):
    bar = progress_bar(2000, True, unit="string", desc="tune", initial=400)
    clock.tick()
    assert lines_of(capfd) == ["tune: 400 of 2,000 strings (20%), 10 s so far"]
    bar.set_postfix_str("loss=0.5")
    bar.update(600)
    clock.tick()
    assert lines_of(capfd) == [
        "tune: 1,000 of 2,000 strings (50%), 20 s so far, about 7 s left, loss=0.5"
    ]
    bar.close()
    assert clock.repeated == []


def test_a_step_that_lasts_is_told_of_less_and_less_and_its_end_does_not_move_away(clock, capfd):
    def ticks(count):
        for _ in range(count):
            clock.tick()
        return lines_of(capfd)

    bar = progress_bar(20, True, unit="string", desc="tune")
    clock.now = 100
    bar.update(10)
    lines = ticks(9)  # told of at once, and after 1, 2, 4 and 8 ticks
    assert [int(re.search(r"about (\d+) s left", line)[1]) for line in lines] == [
        90, 80, 70, 50, 10
    ]  # fmt: skip
    bar.update(1)
    assert len(ticks(1)) == 1
    bar.close()
    few = progress_bar(3, True, unit="stage", desc="export")
    clock.now += 60
    few.update(1)
    assert "left" not in ticks(1)[0]


def test_an_unknown_total(clock, capfd):
    progress_bar(None, True, unit="row", desc="predict").update(3)
    clock.tick()
    assert lines_of(capfd) == ["predict: 3 rows, 10 s so far"]


def test_short_work_writes_nothing(clock, capfd):
    bar = progress_bar(2, True)
    bar.update(2)
    bar.close()
    assert lines_of(capfd) == []


def test_no_bar_counts_all_the_same(clock, capfd):
    bar = progress_bar(2, False, initial=1)
    bar.update(1)
    assert (bar.n, clock.repeated, lines_of(capfd)) == (2, [], [])


def test_a_terminal_gets_a_bar(monkeypatch, capfd):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = progress_bar(2, True, unit="string", desc="tune")
    bar.update(2)
    bar.close()
    assert "2/2" in capfd.readouterr().err


def test_durations():
    assert (describe_seconds(99), describe_seconds(150)) == ("99 s", "2 min")


def test_a_transfer_says_how_much_has_come(clock, capfd, tmp_path):
    (tmp_path / "before").write_bytes(bytes(9_000_000))
    with transfer_progress("pulling owner/name", tmp_path):
        (tmp_path / "blob").write_bytes(bytes(3_000_000))
        clock.tick()
        assert lines_of(capfd) == ["pulling owner/name: 3 MB, 10 s so far"]
    assert clock.repeated == []
