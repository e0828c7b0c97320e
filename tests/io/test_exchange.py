"""Folders and files in their places: never absent, of many writers, nothing left of killed ones."""

import errno
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from mirror_rt.io import exchange
from mirror_rt.io.atomic import new_file, new_folder

POSIX = pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")


@pytest.fixture(autouse=True)
def nothing_seen():
    exchange._seen.clear()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, content):
    with new_folder(path, overwrite=True) as folder:
        (folder / "file").write_text(content)


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2")
def test_the_place_is_taken_at_every_moment(tmp_path, monkeypatch):
    """Whenever something is removed or renamed, the folder is there."""
    path, seen, remove = tmp_path / "bundle", [], exchange.remove
    write(path, "old")

    def look(one):
        seen.append((path / "file").read_text())
        remove(one)

    monkeypatch.setattr(exchange, "remove", look)
    # Between two renames, which a reader seldom meets, there would be none.
    monkeypatch.setattr(exchange, "_move_aside", lambda *_: pytest.fail("not exchanged"))
    write(path, "new")
    assert seen == ["new"]


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_whatever_was_there_is_replaced(tmp_path, monkeypatch, kind, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(exchange, "_is_linux", lambda: False)
    path, kept = tmp_path / "bundle", tmp_path / "kept"
    kept.mkdir()
    (kept / "precious").touch()
    if kind == "file":
        path.write_text("old")
    elif kind == "link":
        path.symlink_to(kept)
    else:
        write(path, "old")
    write(path, "new")
    assert (path / "file").read_text() == "new"
    assert not path.is_symlink()
    assert names(tmp_path) == ["bundle", "kept"]
    assert names(kept) == ["precious"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_many_writers_of_one_folder(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(exchange, "_is_linux", lambda: False)
    path, failed, barrier = tmp_path / "bundle", [], threading.Barrier(16)

    def run(number):
        barrier.wait()
        for _ in range(10):
            try:
                write(path, str(number))
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=run, args=[n]) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert (path / "file").read_text() in map(str, range(16))
    assert names(tmp_path) == ["bundle"]


def test_an_error_of_the_system_is_raised(tmp_path):
    with pytest.raises(OSError, match="nothing") as found:
        exchange.replace_folder(tmp_path / "nothing", tmp_path / "place")
    assert found.value.errno == errno.ENOENT


KILLED = """
    import os, signal
    from pathlib import Path
    from mirror_rt.io.atomic import new_file, new_folder
    with new_folder(Path({0!r}) / "bundle", overwrite=True) as folder:
        (folder / "onnx").mkdir()
        (folder / "onnx/model.onnx").write_bytes(bytes(1000))
        with new_file(Path({0!r}) / "vectors.npy", overwrite=True) as file:
            file.write(bytes(1000))
            file.flush()
            print("begun", flush=True)
            {1}
"""


@POSIX
def test_nothing_stays_of_what_was_killed(tmp_path):
    code = textwrap.dedent(KILLED.format(str(tmp_path), "os.kill(os.getpid(), signal.SIGKILL)"))
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(names(tmp_path)) == 2
    (tmp_path / ".bundle.settings").touch()  # somebody's own
    (tmp_path / ".own.unfinished").touch()
    write(tmp_path / "other", "x")
    assert names(tmp_path) == [".bundle.settings", ".own.unfinished", "other"]


@POSIX
def test_what_others_are_writing_stays(tmp_path):
    code = textwrap.dedent(KILLED.format(str(tmp_path), "input()"))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "begun\n"
        with new_file(tmp_path / "other", overwrite=True) as file:
            file.write(b"x")
        assert len(names(tmp_path)) == 3
        process.communicate("\n")
    assert process.returncode == 0
    assert names(tmp_path) == ["bundle", "other", "vectors.npy"]


@POSIX
def test_what_was_taken_for_a_remnant_is_made_again(tmp_path, monkeypatch):
    lock, taken = exchange._lock, []

    def take_first(descriptor, *, wait):
        if wait and not taken:
            taken.extend(tmp_path.glob(".place.*"))
            exchange.remove(taken[0])
        return lock(descriptor, wait=wait)

    monkeypatch.setattr(exchange, "_lock", take_first)
    with new_file(tmp_path / "place", overwrite=True) as file:
        file.write(b"x")
    assert len(taken) == 1
    assert (tmp_path / "place").read_bytes() == b"x"
