"""The cache of packs and of the server, with encoders that say when they were closed."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirror_rt import BundleError, ClosedError
from mirror_rt.encoding.model_cache import ModelCache

NAMES = [f"l{i:02d}" for i in range(12)]


class FakeEncoder:
    """Counts the bytes of all encoders that are open."""

    lock, open_bytes, most = threading.Lock(), 0, 0

    def __init__(self, name, size=10):
        self.name, self.size, self.closed = name, size, False
        with self.lock:
            type(self).open_bytes += size
            type(self).most = max(self.most, self.open_bytes)

    def close(self):
        assert not self.closed
        self.closed = True
        with self.lock:
            type(self).open_bytes -= self.size


@pytest.fixture(autouse=True)
def _reset():
    FakeEncoder.open_bytes = FakeEncoder.most = 0


def make(limit=30, load=FakeEncoder, **options):
    return ModelCache(load, dict.fromkeys(NAMES, 10), limit=limit, **options)


def use(cache, *names):
    for name in names:
        with cache.lease(name) as encoder:
            assert encoder.name == name
            assert not encoder.closed


def test_the_least_recently_used_makes_room():
    cache = make()
    use(cache, "l00", "l01", "l02", "l00", "l03")
    got = cache.statistics()
    assert got.loaded == ("l02", "l00", "l03")
    assert (got.hits, got.loads, got.evictions, got.bytes, got.limit) == (1, 4, 1, 30, 30)
    use(cache, "l01")
    assert cache.statistics().loaded == ("l00", "l03", "l01")


def test_pinned_ones_stay():
    cache = make(pinned=["l00"])
    use(cache, *NAMES, *NAMES)
    assert cache.statistics().loaded == ("l00", "l10", "l11")
    assert cache.statistics().hits == 1


def test_no_limit_keeps_all():
    cache = make(limit=None)
    use(cache, *NAMES, *NAMES)
    assert cache.statistics().loaded == tuple(NAMES)
    assert cache.statistics().evictions == 0


def test_what_is_in_use_is_closed_by_its_last_user_and_its_room_waited_for():
    cache, waits, open_then = make(limit=10), threading.Event(), []
    wait = cache._changed.wait
    cache._changed.wait = lambda timeout: (waits.set(), wait(timeout))

    def load_another():
        with cache.lease("l01"):
            open_then.append(FakeEncoder.open_bytes)

    with cache.lease("l00") as first:
        thread = threading.Thread(target=load_another)
        thread.start()
        assert waits.wait(60)
        assert not first.closed
    thread.join(60)
    assert first.closed
    assert open_then == [FakeEncoder.most] == [10]


def test_a_thread_that_holds_one_does_not_wait_for_itself():
    cache = make(limit=10)
    with cache.lease("l00") as first, cache.lease("l01") as second:
        assert not first.closed
        assert not second.closed
        assert cache.statistics().bytes == 20
    assert FakeEncoder.open_bytes == cache.statistics().bytes == 10


def test_a_failed_load_leaves_nothing_behind():
    broken = {"l00"}

    def load(name):
        if name in broken:
            raise BundleError("damaged")
        return FakeEncoder(name)

    cache = make(limit=10, load=load)
    with pytest.raises(BundleError, match="damaged"):
        use(cache, "l00")
    assert cache.statistics().bytes == 0
    broken.clear()
    use(cache, "l00")


def test_closing():
    cache = make()
    use(cache, "l00")
    with cache.lease("l01") as kept:
        cache.close()
        assert not kept.closed
        assert FakeEncoder.open_bytes == 10
    assert kept.closed
    assert FakeEncoder.open_bytes == cache.statistics().bytes == 0
    with pytest.raises(ClosedError, match="closed"):
        use(cache, "l00")


@pytest.mark.parametrize("pinned", [(), ("l00",)])
def test_many_threads(pinned):
    """Nobody sees a closed encoder, the limit holds, no name is loaded twice, none starves."""
    loading = set()

    def load(name):
        assert name not in loading
        loading.add(name)
        encoder = FakeEncoder(name)
        loading.remove(name)
        return encoder

    cache = make(load=load, pinned=pinned)

    def work(seed):
        use(cache, *random.Random(seed).choices(NAMES, k=300))

    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(work, range(8)))) == 8
    assert FakeEncoder.most <= 30
    got = cache.statistics()
    assert got.hits + got.loads == 8 * 300
    assert got.loads - got.evictions == len(got.loaded) <= 3
    assert FakeEncoder.open_bytes == got.bytes
