import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirror_rt import OutputExistsError
from mirror_rt.io.atomic import check_free, check_space, files_under, new_file, new_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_whole(tmp_path):
    path = tmp_path / "deep" / "out.bin"
    with new_file(path, overwrite=False) as file:
        file.write(b"x")
        assert not path.exists()
    assert path.read_bytes() == b"x"
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()
    assert names(path.parent) == ["out.bin"]


def test_a_failed_file_leaves_nothing(tmp_path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), new_file(path, overwrite=True) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["out.bin"]


def test_existing_outputs_are_refused(tmp_path):
    (tmp_path / "out.bin").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    with (
        pytest.raises(OutputExistsError, match="overwrite=True"),
        new_file(tmp_path / "out.bin", overwrite=False),
    ):
        pass
    with pytest.raises(OutputExistsError), new_folder(tmp_path / "folder", overwrite=False):
        pass


def test_a_folder_is_replaced_whole(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(OSError, match="disk full"), new_folder(path, overwrite=True) as fresh:
        (fresh / "new").touch()
        raise OSError("disk full")
    assert names(path) == ["old"]
    with new_folder(path, overwrite=True) as fresh:
        (fresh / "new").touch()
        (fresh / "new").chmod(0o600)
    assert names(path) == ["new"]
    assert (path / "new").stat().st_mode & 0o777 == 0o666 & ~current_umask()
    assert names(tmp_path) == ["out"]


def test_an_empty_folder_is_free(tmp_path):
    with new_folder(tmp_path / "out", overwrite=False) as fresh:
        (fresh / "new").touch()
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty", overwrite=False) as fresh:
        (fresh / "new").touch()
    assert names(tmp_path / "empty") == ["new"]


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_names_its_output(tmp_path):
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*out.bin'"),
        new_file(tmp_path / "out.bin", overwrite=False),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_too_little_space_is_said_before_the_work(tmp_path):
    check_space(tmp_path / "not" / "yet" / "there", 1)
    with pytest.raises(OSError, match=r"No space left on device: 1000000000000 MB are needed"):
        check_space(tmp_path / "out", 10**18)


def test_what_cannot_be_replaced_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="in use as a folder"):
        check_free(Path(), overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        check_free(tmp_path / "file" / "x" / "y", overwrite=False)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError), new_file(tmp_path / "folder", overwrite=True):
        pass
    check_free(tmp_path / "not" / "yet", overwrite=False)
    assert names(tmp_path) == ["file", "folder"]


def test_files_are_listed_while_others_come_and_go(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "stays").touch()
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            check_free(tmp_path / "new", overwrite=False)  # makes and removes a folder

    with ThreadPoolExecutor(1) as other:
        other.submit(come_and_go)
        try:
            listed = [{path.name for path in files_under(tmp_path)} for _ in range(3000)]
        finally:
            over.set()
    assert all("stays" in names for names in listed)


def test_a_link_to_nothing_is_an_output_that_exists(tmp_path):
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "nothing")
    for make in (new_file, new_folder):
        with pytest.raises(OutputExistsError, match="already exists"), make(link, overwrite=False):
            pass
    with new_folder(link, overwrite=True) as folder:
        (folder / "new").touch()
    assert [path.name for path in link.iterdir()] == ["new"]
    assert not link.is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
