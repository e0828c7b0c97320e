"""The cache of vectors: what it finds is what was stored, whoever else uses or harms the file."""

import contextlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mirror_rt import ConfigError, DataError, Encoder
from mirror_rt.inference import vector_cache
from mirror_rt.inference.vector_cache import LEAST_BYTES, VectorCache

DIMENSION = 1024


def vector(key):
    return np.random.default_rng(int.from_bytes(key, "little")).random(DIMENSION, np.float32)


def keys_of(*numbers):
    return [number.to_bytes(8, "little") for number in numbers]


def open_cache(path, model="model", most_bytes=LEAST_BYTES):
    return VectorCache(path, most_bytes=most_bytes, model=model, dimension=DIMENSION)


def store(cache, *numbers):
    keys = keys_of(*numbers)
    cache.store(keys, np.array([vector(key) for key in keys]))


def check(cache, *numbers):
    """Return which of the keys are found, and check every bit of what is found."""
    keys = keys_of(*numbers)
    found = cache.find(keys)
    for i, kept in found.items():
        assert kept.tobytes() == vector(keys[i]).tobytes()
    return [numbers[i] for i in found]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vectors.cache"


@pytest.fixture
def cache(path):
    cache = open_cache(path)
    yield cache
    cache.close()


def test_it_finds_what_was_stored_and_nothing_else(cache, path):
    numbers = [*range(700)]
    store(cache, *numbers[:600])
    assert check(cache, *numbers, 5, 5) == [*range(600), 5, 5]
    with_other = open_cache(path, "another model")
    assert check(with_other, *numbers) == []
    with_other.close()
    cache.close()
    again = open_cache(path)
    assert check(again, *numbers) == numbers[:600]
    again.close()


def test_what_was_stored_first_stays_and_what_is_not_finite_goes(cache):
    store(cache, 1)
    spoilt = np.full((2, DIMENSION), np.inf, np.float32)
    cache.store(keys_of(1, 2), spoilt)
    cache.store(keys_of(1), np.zeros((1, DIMENSION), np.float32))
    assert check(cache, 1, 2) == [1]


def test_hits_and_misses_are_told(cache):
    told = []
    cache.on_find = lambda *counts: told.append(counts)
    store(cache, 1)
    cache.find(keys_of(1, 2, 3, 1))
    assert told == [(2, 2)]


def test_the_file_is_bounded_and_the_least_used_leave(cache, path, monkeypatch):
    monkeypatch.setattr(vector_cache, "_SAME_USE", -1)
    store(cache, *range(200))
    for start in range(200, 12_000, 200):
        assert check(cache, *range(100)) == [*range(100)]  # used, so they stay
        store(cache, *range(start, start + 200))
    assert path.stat().st_size <= LEAST_BYTES
    assert check(cache, *range(100, 200)) == []
    assert len(check(cache, *range(12_000))) > 2000
    assert check(cache, 11_999) == [11_999]


def test_a_bound_that_is_too_small(path):
    with pytest.raises(ConfigError, match=r"cache_bytes must be at least 16777216, got 5"):
        open_cache(path, most_bytes=5)
    assert not path.exists()


def of_another_program(path):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE vectors (mine)")
    db.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("my diary, which is longer than the header of a file" * 20),
        of_another_program,
    ],
)
def test_another_file_is_refused_by_its_name_and_left_alone(path, make):
    make(path)
    before = path.read_bytes()
    with pytest.raises(DataError, match=f"{path.name} is no cache of vectors, or damaged"):
        open_cache(path)
    assert path.read_bytes() == before


def test_a_place_where_no_file_can_be(tmp_path):
    for place in (tmp_path, tmp_path / "no folder" / "cache"):
        with pytest.raises(ConfigError, match=f"cache='{place}' cannot be used"):
            open_cache(place)


def test_a_locked_file_is_said_once_and_nothing_fails(cache, path, caplog, monkeypatch):
    monkeypatch.setattr(vector_cache, "_PAUSE", 0.0)
    store(cache, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING):
        store(cache, 2)
        store(cache, 3)
    assert caplog.text.count("it cannot be used now") == 1
    assert path.name in caplog.text
    assert "locked" in caplog.text
    assert check(cache, 1, 2, 3) == [1]  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    store(cache, 2)
    assert check(cache, 1, 2, 3) == [1, 2]


def test_a_full_disk_is_said_and_nothing_fails(cache, caplog):
    store(cache, 1)
    ((pages,),) = cache._db.execute("PRAGMA page_count")
    cache._db.execute(f"PRAGMA max_page_count = {pages + 4}")  # is full there
    with caplog.at_level(logging.WARNING):
        store(cache, *range(2, 50))
    assert "full" in caplog.text
    assert check(cache, *range(50)) == [1]


def test_a_closed_cache_finds_and_stores_nothing(cache):
    store(cache, 1)
    cache.close()
    store(cache, 2)
    assert check(cache, 1, 2) == []
    cache.close()


def test_threads_share_one(cache):
    def work(first):
        for number in range(first, first + 100):
            store(cache, number)
            assert check(cache, number) == [number]

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(work, range(0, 200, 50)))) == 4
    assert check(cache, *range(250)) == [*range(250)]


WRITER = """
import itertools, sys
sys.path.insert(0, {folder!r})
from pathlib import Path
from test_vector_cache import check, open_cache, store
cache = open_cache(Path({path!r}))
for n in itertools.count({first}, 10):
    store(cache, *range(n, n + 10))
    assert check(cache, *range(n, n + 10)) == list(range(n, n + 10)), n
    print(n, flush=True)
    if n >= {last}:
        break
"""


def start_writer(path, first, last):
    code = WRITER.format(folder=str(Path(__file__).parent), path=str(path), first=first, last=last)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.full
def test_processes_make_and_share_one(path):
    writers = [start_writer(path, 0, 190), start_writer(path, 100, 290)]
    assert [writer.communicate(timeout=600)[0].count("\n") for writer in writers] == [20, 20]
    assert [writer.returncode for writer in writers] == [0, 0]
    cache = open_cache(path)
    assert check(cache, *range(310)) == [*range(300)]
    cache.close()


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_kill_9_leaves_whole_vectors(path):
    for round_ in range(3):
        writer = start_writer(path, 1000 * round_, 1 << 30)
        for _ in range(3 + 5 * round_):
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        cache = open_cache(path)
        assert set(range(1000 * round_, last + 10)) <= set(check(cache, *range(4000)))
        cache.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_leaves_the_cache_to_its_parent(cache):
    store(cache, 1)
    if (child := os.fork()) == 0:
        try:
            store(cache, 2)
            os._exit(0 if cache.find(keys_of(1, 2)) == {} else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store(cache, 3)
    assert check(cache, 1, 2, 3) == [1, 3]


def test_an_encoder_takes_from_the_cache_what_it_has_stored(bundle, words, path):
    from rounding import NORM_ERROR  # its writers import this file elsewhere

    texts = [" ".join(words[i : i + 3]) for i in range(20)] * 2
    with Encoder.load(bundle) as plain:
        expected = plain.encode(texts)
        codes = plain.encode(texts, precision="int8", truncate_dim=16)
    with Encoder.load(bundle, cache=path) as encoder:
        first = encoder.encode(texts)
        np.testing.assert_allclose(first, expected, atol=NORM_ERROR)

        def fail(*_, **__):
            raise AssertionError("it runs")

        encoder._model.run_batch = fail
        assert encoder.encode(texts[::-1]).tobytes() == first[::-1].tobytes()
        assert encoder.encode(texts[0]).tobytes() == first[0].tobytes()
        near = encoder.encode(texts, precision="int8", truncate_dim=16).astype(int) - codes
        assert abs(near).max() <= 1
        with pytest.raises(AssertionError, match="it runs"):
            encoder.encode(texts[0], prompt="a ")
    with Encoder.load(bundle, cache=str(path), providers="native", variant="int8") as other:
        assert other.pipeline.cache.find(other.pipeline.tokenizer([texts[0]]).tokens.keys()) == {}
        other.encode(texts)
