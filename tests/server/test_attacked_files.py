"""Files that an operator names: none keeps the server waiting, and only regular ones are read."""

import os
import shutil
import signal
import socket

import pytest

from mirror_rt import ConfigError
from mirror_rt.server import ListenConfig
from mirror_rt.server.admission.api_keys import ApiKeys
from mirror_rt.server.process.tls import check_tls
from server_process import until
from work_limits import little_work

pytestmark = pytest.mark.skipif(os.name != "posix", reason="has no pipes in folders")


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("one\n")
    path.chmod(0o600)
    return path


def test_a_pipe_of_keys_is_refused_at_the_start(pipe):
    with little_work(), pytest.raises(ConfigError, match="it is not a regular file"):
        ApiKeys((), pipe)


def test_keys_without_end_are_refused(keys_file):
    keys_file.write_text("key\n" * (1 << 18) + "key\n")
    with little_work(), pytest.raises(ConfigError, match="it has more than 1048576 bytes"):
        ApiKeys((), keys_file)


@pytest.mark.parametrize("what", ["pipe", "folder", "nothing", "socket"])
def test_keys_stay_where_their_file_is_exchanged(what, pipe, keys_file, caplog):
    keys = ApiKeys((), keys_file)
    keys_file.unlink()
    if what == "pipe":
        pipe.rename(keys_file)
    elif what == "folder":
        keys_file.mkdir()
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(keys_file))
    with little_work():
        keys.look()
        assert keys.accepts("Bearer one")
    assert "the API keys stay as they were" in caplog.text


def test_who_checks_a_key_reads_no_file(keys_file, monkeypatch):
    """A disk that does not answer holds up the thread that looks, and no request."""
    keys = ApiKeys((), keys_file)
    monkeypatch.setattr("mirror_rt.server.admission.api_keys._read", None)
    monkeypatch.setattr("mirror_rt.server.watching._stamp", None)
    keys.ask()  # as a signal handler does
    assert keys.accepts("Bearer one")


def test_a_thread_reads_them_when_it_is_asked(keys_file):
    keys = ApiKeys((), keys_file)
    keys.watch()
    keys_file.write_text("two\n")
    keys.ask()
    until(lambda: keys.accepts("Bearer two"))
    keys.close()
    keys._thread.join(60)
    assert not keys._thread.is_alive()


@pytest.mark.parametrize("which", ["tls_certificate", "tls_key"])
def test_a_pipe_of_a_certificate_is_refused(which, pipe, keys_file):
    files = {"tls_certificate": keys_file, "tls_key": keys_file} | {which: pipe}
    with little_work(), pytest.raises(ConfigError, match=r"TLS: .* it is not a regular file"):
        check_tls(ListenConfig(**files))


@pytest.mark.full
def test_a_pipe_in_place_of_keys_and_manifest_stops_nobody(bundle, tmp_path, start_server,
                                                           keys_file, pipe):  # fmt: skip
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    server = start_server(folder, "--api-keys-file", keys_file, "--reload-interval", "0.1")
    key = {"Authorization": "Bearer one"}
    for path in (keys_file, folder / "mirror.json"):
        path.unlink()
        os.mkfifo(path)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: any("API keys stay" in line for line in server.lines))
    until(lambda: any("models stay as they were" in line for line in server.lines))
    assert server.get("/health")[0] == 200
    assert server.post("/embed", {"inputs": "a"}, key)[0] == 200
    assert server.post("/embed", {"inputs": "a"})[0] == 401
    assert server.stop() == 0
