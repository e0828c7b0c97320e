"""A damaged cache of vectors: no call and no start fails, it is said once and made anew."""

import contextlib
import logging
import os
import random
import sqlite3

import numpy as np
import pytest

from mirror_rt import ConfigError, Encoder
from mirror_rt.inference import vector_cache
from mirror_rt.inference.vector_cache import LEAST_BYTES, VectorCache

DIMENSION = 64
PAGE = 4096


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(vector_cache, "_PAUSE", 0.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vectors.cache"


def open_cache(path):
    return VectorCache(path, most_bytes=LEAST_BYTES, model="model", dimension=DIMENSION)


def keys_of(count):
    return [number.to_bytes(8, "little") for number in range(count)]


def vectors_of(count):
    return np.random.default_rng(0).random((count, DIMENSION), np.float32)


def filled(path, count=400):
    with contextlib.closing(open_cache(path)) as cache:
        cache.store(keys_of(count), vectors_of(count))


def check(cache, count=400):
    """Check every bit of what is found, store all, and find all again."""
    keys, vectors = keys_of(count), vectors_of(count)
    for i, found in cache.find(keys).items():
        assert found.tobytes() == vectors[i].tobytes()
    cache.store(keys, vectors)
    found = cache.find(keys)
    assert all(found[i].tobytes() == vectors[i].tobytes() for i in found)
    return len(found)


def overwrite(path, place, content):
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def flip(path, bit):
    content = path.read_bytes()
    overwrite(path, bit // 8, bytes([content[bit // 8] ^ 1 << bit % 8]))


def test_a_flipped_bit_of_a_vector_spoils_that_vector_alone(path, caplog):
    filled(path)
    data = vectors_of(400)[7].tobytes()
    flip(path, 8 * path.read_bytes().index(data) + 5)
    cache = open_cache(path)
    with caplog.at_level(logging.WARNING):
        assert sorted({*range(400)} - {*cache.find(keys_of(400))}) == [7]
    assert caplog.text.count(str(path)) == 1
    assert "checksum" in caplog.text
    assert check(cache) == 400  # it was stored again
    cache.close()


@pytest.mark.parametrize("page", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("at_start", [True, False])
def test_a_page_of_zeros(path, caplog, page, at_start):
    filled(path)
    place = page * PAGE if page >= 0 else path.stat().st_size - PAGE
    cache = None if at_start else open_cache(path)
    overwrite(path, place, bytes(PAGE))
    with caplog.at_level(logging.WARNING):
        cache = cache or open_cache(path)
        check(cache)
        assert check(cache) == 400
    cache.close()
    again = open_cache(path)
    assert check(again) == 400
    again.close()


def spoiled_header(path):
    overwrite(path, 16, b"\xff" * 80)


def spoiled_magic(path):
    flip(path, 8 * 3)


def cut_off(path):
    os.truncate(path, path.stat().st_size // 2)


def to_nothing(path):
    os.truncate(path, 0)


def values_of_other_types(path):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE vectors SET vector = 5, used = 'never'")
    db.close()


def a_vector_changed(path):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE vectors SET vector = zeroblob(length(vector))")
    db.close()


def without_its_table(path):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE vectors")
        db.execute("CREATE TABLE vectors (other)")
    db.close()


DAMAGES = [spoiled_header, spoiled_magic, cut_off, to_nothing, values_of_other_types,
           a_vector_changed, without_its_table]  # fmt: skip


@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_is_made_good(path, caplog, damage, at_start):
    filled(path)
    cache = None if at_start else open_cache(path)
    damage(path)
    with caplog.at_level(logging.WARNING):
        cache = cache or open_cache(path)
        check(cache)
        assert check(cache) == 400
    assert caplog.text.count("made anew") <= 1
    cache.close()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8))
def test_random_damage_never_fails_a_call(path, seed):
    """Bits, bytes and pages anywhere in the file and its log, in use and at a start."""
    generator = random.Random(seed)
    for _ in range(40):
        filled(path)
        cache = open_cache(path)
        for _ in range(generator.randint(1, 4)):
            files = [file for file in path.parent.iterdir() if file.stat().st_size]
            file = generator.choice(files)
            size = file.stat().st_size
            kind = generator.choice(["bit", "bytes", "zeros", "end"])
            place = generator.randrange(size)
            if kind == "bit":
                flip(file, 8 * place)
            elif kind == "bytes" and not (file == path and place < 512):
                overwrite(file, place, generator.randbytes(generator.randint(1, 64)))
            elif kind == "zeros":
                overwrite(file, place // PAGE * PAGE, bytes(PAGE))
            elif kind == "end" and not file.name.endswith("-shm"):  # SQLite maps it: SIGBUS
                os.truncate(file, place)
            check(cache)
            if generator.random() < 0.5:
                cache.close()
                cache = open_cache(path)
        check(cache)
        cache.close()


def test_who_holds_a_damaged_file_goes_on_with_the_new_one(path):
    filled(path)
    first, second = open_cache(path), open_cache(path)
    first._renew(sqlite3.DatabaseError("database disk image is malformed"))
    first.store([b"new"], vectors_of(1))
    assert second.find([b"new"])
    second._renew(sqlite3.DatabaseError("database disk image is malformed"))
    assert not first.find([b"new"])
    second.store([b"new"], vectors_of(1))
    assert first.find([b"new"])
    assert check(first) == check(second) == 400
    first.close()
    second.close()


def test_a_later_version_is_left_alone_and_fails_nothing(path, caplog):
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    with caplog.at_level(logging.WARNING):
        cache = open_cache(path)
        assert cache.find(keys_of(3)) == {}
        cache.store(keys_of(3), vectors_of(3))
    assert caplog.text.count("of another version") == 1
    cache.close()
    assert path.read_bytes() == before


def test_another_file_in_its_place_is_left_alone(path, caplog):
    filled(path)
    cache = open_cache(path)
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    path.write_text("my diary " * 1000)
    cache._db.execute("PRAGMA writable_schema = ON")
    cache._renew(sqlite3.DatabaseError("malformed"))
    with caplog.at_level(logging.WARNING):
        assert cache.find(keys_of(3)) == {}
        cache.store(keys_of(3), vectors_of(3))
    cache.close()
    assert path.read_text() == "my diary " * 1000


def test_a_file_that_is_locked_at_the_start_fails_nothing(path, caplog):
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = DELETE")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING):
        cache = open_cache(path)
        assert cache.find(keys_of(3)) == {}
    assert f"{path}: it cannot be used now" in caplog.text
    other.execute("ROLLBACK")
    other.close()
    assert check(cache) == 400
    cache.close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="no regular file"):
        open_cache(path)


def test_an_encoder_goes_on(bundle, words, path):
    texts = [" ".join(words[i : i + 3]) for i in range(20)]
    with Encoder.load(bundle, cache=path) as encoder:
        expected = encoder.encode(texts)
        for damage in (a_vector_changed, spoiled_header, cut_off):
            damage(path)
            np.testing.assert_array_equal(encoder.encode(texts), expected)
    overwrite(path, 0, bytes(PAGE))
    with Encoder.load(bundle, cache=path) as encoder:
        np.testing.assert_array_equal(encoder.encode(texts), expected)
