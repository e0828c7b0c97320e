import contextlib
import re
import time

import pytest

from mirror_rt import progress
from mirror_rt.progress import describe_seconds, progress_bar, transfer_progress


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.02)


def lines_of(capfd):
    return capfd.readouterr().err.splitlines()


def wait_for(capfd, pattern):
    """Wait until a line is written that matches, or for half a minute."""
    seen = []
    for _ in range(1500):
        seen += lines_of(capfd)
        if any(re.search(pattern, line) for line in seen):
            return
        time.sleep(0.02)
    raise AssertionError(f"no line matches {pattern}: {seen[-3:]}")


def test_lines_say_how_far_the_work_is_while_a_step_lasts(quick, capfd):
    bar = progress_bar(2000, True, unit="string", desc="tune", initial=400)
    wait_for(capfd, r"^tune: 400 of 2,000 strings \(20%\), 0 s so far$")
    bar.set_postfix_str("loss=0.5")
    bar.update(600)
    wait_for(capfd, r"^tune: 1,000 of 2,000 strings \(50%\), .* so far, about .* left, loss=0.5$")
    bar.close()
    time.sleep(0.1)
    lines_of(capfd)
    time.sleep(0.1)
    assert lines_of(capfd) == []


def test_a_step_that_lasts_is_told_of_less_and_less_and_its_end_does_not_move_away(monkeypatch):
    """The clock and the ticks are those of the test: ten seconds each."""
    now, lines = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "repeatedly", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(progress.sys.stderr, "write", lines.append)

    def ticks(bar, count):
        lines.clear()
        for _ in range(count):
            now[0] += 10
            bar._write()
        return lines

    bar = progress_bar(20, True, unit="string", desc="tune")
    now[0] = 100
    bar.update(10)
    assert len(ticks(bar, 9)) == 5  # at once, and after 1, 2, 4 and 8 ticks
    left = [int(re.search(r"about (\d+) s left", line)[1]) for line in lines]
    assert left == [90, 80, 70, 50, 10]
    bar.update(1)
    assert len(ticks(bar, 1)) == 1
    few = progress_bar(3, True, unit="stage", desc="export")
    now[0] += 60
    few.update(1)
    assert "left" not in ticks(few, 1)[0]


def test_an_unknown_total(quick, capfd):
    bar = progress_bar(None, True, unit="row", desc="predict")
    bar.update(3)
    wait_for(capfd, r"^predict: 3 rows, \d s so far$")
    bar.close()


def test_short_work_writes_nothing(capfd):
    bar = progress_bar(2, True)
    bar.update(2)
    bar.close()
    assert lines_of(capfd) == []


def test_no_bar_counts_all_the_same(quick, capfd):
    bar = progress_bar(2, False, initial=1)
    bar.update(1)
    time.sleep(0.1)
    assert (bar.n, lines_of(capfd)) == (2, [])


def test_a_terminal_gets_a_bar(monkeypatch, capfd):
    pytest.importorskip("tqdm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = progress_bar(2, True, unit="string", desc="tune")
    bar.update(2)
    bar.close()
    assert "2/2" in capfd.readouterr().err


def test_durations():
    assert (describe_seconds(99), describe_seconds(150)) == ("99 s", "2 min")


def test_a_transfer_says_how_much_has_come(quick, capfd, tmp_path):
    (tmp_path / "before").write_bytes(bytes(9_000_000))
    with transfer_progress("pulling owner/name", tmp_path):
        (tmp_path / "blob").write_bytes(bytes(3_000_000))
        wait_for(capfd, r"^pulling owner/name: 3 MB, \d s so far$")
