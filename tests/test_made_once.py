"""What tests share is made once, and again when it is damaged or its code has changed."""

import functools
import os

import pytest

import made_once
from made_once import MadeOnce


@pytest.fixture
def maker(tmp_path, monkeypatch):
    """Gives a folder by its name, and counts how often one was made, beside a file of code."""
    code, runs = tmp_path / "code.py", []
    code.write_text("1")
    monkeypatch.setattr(made_once, "ROOT", tmp_path)
    monkeypatch.setattr(made_once, "_sources", lambda: (code,))

    def write(text, folder):
        runs.append(text)
        folder.mkdir()
        (folder / "file").write_text(text)

    return MadeOnce(tmp_path), lambda text: functools.partial(write, text), runs, code


def test_it_is_made_once_for_all_runs(maker, tmp_path):
    make, write, runs, _ = maker
    first = make("a/name", write("one"))
    assert MadeOnce(tmp_path)("a/name", write("two")) == first
    assert (first / "file").read_text() == "one"
    assert runs == ["one"]


def test_a_folder_that_a_test_has_changed_is_made_again(maker):
    make, write, runs, _ = maker
    (make("name", write("one")) / "more").touch()
    folder = make("name", write("two"))
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert runs == ["one", "two"]


def test_what_was_broken_off_is_made_again(maker):
    make, write, *_ = maker

    def fails(folder):
        folder.mkdir()
        raise MemoryError

    with pytest.raises(MemoryError):
        make("name", fails)
    assert (make("name", write("two")) / "file").read_text() == "two"


def test_other_code_makes_it_again_and_old_folders_go(maker, monkeypatch):
    make, write, runs, code = maker
    monkeypatch.setattr(made_once, "KEPT", 2)
    folders = []
    for number in range(3):
        code.write_text("1" * (number + 1))
        os.utime(code, ns=(number, number))
        folders.append(make("name", write(str(number))))
        os.utime(folders[-1].parent, (number, number))
    assert runs == ["0", "1", "2"]
    assert [folder.exists() for folder in folders] == [False, True, True]
