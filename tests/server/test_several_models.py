"""Bundles and packs side by side in one server: names, memory, turns and reload."""

import asyncio
import itertools
import json
import shutil
import threading
import time

import numpy as np
import pytest

from asgi_calls import Call, HeldEncoder, run
from mirror_rt import ConfigError, Encoder, OverloadedError
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.encoding.model_cache import memory_of
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app
from mirror_rt.server.models import sources
from rounding import ANY_BATCH
from server_process import make_pack, until, with_prompt

LOAD = LoadOptions(threads=1)
TEXT = "the river flows"


class Watched(HeldEncoder):
    """Encoders that a test finds by the names of their folders, and counts while they are open."""

    opened, most, by_name = [], 0, {}

    def __init__(self, description, *arguments):
        super().__init__(description, *arguments)
        Watched.opened.append(self)
        Watched.most = max(Watched.most, len(Watched.opened))
        Watched.by_name[description.folder.name] = self

    def close(self):
        super().close()
        Watched.opened.remove(self)


@pytest.fixture(scope="module")
def folders(bundle, tmp_path_factory):
    """Four bundles, of which each has vectors of its own, and a pack of two languages."""
    top = tmp_path_factory.mktemp("models")
    for name in "abcd":
        with_prompt(bundle, top / name, f"{name} {name * 3} ")
    prompts = {"fr": {"query": "la rivière "}, "de": {"query": "der Fluss "}}
    make_pack(top / "pack", {"fr": bundle, "de": bundle}, "fr", prompts)
    return top


@pytest.fixture
def serve(monkeypatch):
    """Make applications of what they serve and of fields of `ServerConfig`."""
    monkeypatch.setitem(
        sources.SERVED, "vectors", sources.SERVED["vectors"]._replace(loader=Watched)
    )
    Watched.opened, Watched.most, Watched.by_name = [], 0, {}
    registries = []

    def serve(*paths, **fields):
        app = create_app(paths, ServerConfig(**{"load": LOAD, "token_budget": 64} | fields))
        registries.append(app.state.registry)
        app.state.registry.wait_until_warm()
        return app

    yield serve
    for encoder in Watched.opened:
        encoder.free.set()
    for registry in registries:
        registry.close()
        assert not registry._cache.loaded()


def size(folder):
    return memory_of(folder, Manifest.read(folder), None)


async def embedded(app, model=None, lang=None, **headers):
    body = {"input": TEXT, "model": model, "lang": lang, "prompt_name": "query"}
    return await Call(app, "/v1/embeddings", body, headers=headers).answer()


async def check_vector(app, folder, **asked):
    status, answer = await embedded(app, **asked)
    assert status == 200, answer
    vector = answer["data"][0]["embedding"]
    with Encoder.load(folder, threads=1) as encoder:
        np.testing.assert_allclose(vector, encoder.encode_query(TEXT), atol=ANY_BATCH)
    return answer["model"]


def test_bundles_and_a_pack(folders, serve):
    aliases = ("text-embedding-3-small", "second=b", "french=mirror-fr")
    app = serve(folders / "a", folders / "pack", folders / "b",
                model_aliases=aliases)  # fmt: skip

    async def main():
        assert await check_vector(app, folders / "a") == "a"
        assert await check_vector(app, folders / "a", model="text-embedding-3-small") == "a"
        assert await check_vector(app, folders / "b", model="second") == "b"
        pack = folders / "pack"
        assert await check_vector(app, pack / "de", lang="de") == "mirror-de"
        assert await check_vector(app, pack / "fr", model="mirror", lang="fr-CA") == "mirror-fr"
        assert await check_vector(app, pack / "fr", model="french") == "mirror-fr"
        assert (await embedded(app, model="b", lang="fr"))[0] == 422
        assert (await embedded(app, model="c"))[0] == 404
        status, listed = await Call(app, "/v1/models").answer()
        assert {model["id"] for model in listed["data"]} == {
            "a", "b", "mirror", "mirror-fr", "mirror-de", "text-embedding-3-small", "second",
            "french",
        }  # fmt: skip
        assert (await Call(app, "/v1/models/french").answer())[1]["id"] == "french"
        assert (await Call(app, "/ready").answer())[0] == 200
        status, numbers = await Call(app, "/status").answer()
        assert status == 200
        assert [model["loaded"] for model in numbers["models"]] == [True] * 4

    run(main())
    metrics = app.state.registry.metrics.text().decode()
    for name in ("a", "b", "mirror-de", "mirror-fr"):
        assert f'mirror_rt_model_loaded{{model="{name}"}} 1.0' in metrics
        assert f'mirror_rt_model_loads_total{{model="{name}"}} 1.0' in metrics


def test_two_models_of_one_name_need_an_alias(folders, serve, tmp_path, monkeypatch):
    other = shutil.copytree(folders / "b", tmp_path / "a")
    with pytest.raises(ConfigError, match=r"two models are called 'a': .*NAME="):
        serve(folders / "a", other)
    with pytest.raises(ConfigError, match="there are 2 sources, so say which"):
        serve(folders / "a", other, model_name="one")
    with pytest.raises(ConfigError, match="there is no 'c', but a"):
        serve(folders / "a", model_aliases=("b=c",))
    with pytest.raises(ConfigError, match="two models are called 'b'"):
        serve(folders / "a", folders / "b", model_aliases=("b=a",))
    app = serve(folders / "a", other, model_aliases=(f"b={other}",))
    assert run(check_vector(app, other, model="b")) == "b"
    assert list(app.state.registry.models.by_name) == ["a", "b"]
    monkeypatch.chdir(folders)  # where the name of the model is the path of its folder, too
    names = serve("a", model_aliases=("c=a",)).state.registry.models.names
    assert {"a", "c"} <= set(names)


def test_languages_are_of_the_packs(folders, serve):
    app = serve(folders / "a", folders / "pack", languages=("de",), fallback="de")
    assert list(app.state.registry.models.by_name) == ["a", "mirror-de"]
    assert run(check_vector(app, folders / "pack" / "de", model="mirror", lang="fr")) == "mirror-de"
    with pytest.raises(ConfigError, match="not a pack to choose languages of"):
        serve(folders / "a", folders / "b", languages=("de",))


def test_models_come_and_go_within_the_limit(folders, serve):
    """Each is loaded when a request asks for it; never are more in memory than the limit allows."""
    names = list("abcd")
    paths = [folders / name for name in names]
    app = serve(*paths, memory_limit=2.5 * max(map(size, paths)))
    registry = app.state.registry
    assert Watched.most == 2
    assert set(registry.services) == {"a", "b"}  # the default model is the last one to be loaded

    async def main():
        for name in names:
            assert await check_vector(app, folders / name, model=name) == name
        assert set(registry.services) == {"c", "d"}
        outputs = (await Call(app, "/v2/models/a").answer())[1]["outputs"]
        assert outputs[0]["shape"] == [-1, 32]
        _, numbers = await Call(app, "/status").answer()
        loaded = {model["name"]: model["loaded"] for model in numbers["models"]}
        assert loaded == {"a": False, "b": False, "c": True, "d": True}
        assert (await Call(app, "/ready").answer())[0] == 200
        assert set(registry.services) == {"c", "d"}  # neither loaded anything

    run(main())
    assert Watched.most == 2
    assert registry._cache.statistics().bytes <= registry._cache.statistics().limit
    with pytest.raises(ConfigError, match=r"memory_limit of .* is too low: a needs"):
        serve(*paths, memory_limit=1000)


def test_many_requests_for_more_models_than_there_is_room_for(folders, serve):
    vectors = {name: expected_query(folders / name) for name in "abcd"}
    paths = [folders / name for name in vectors]
    app = serve(*paths, memory_limit=2.5 * max(map(size, paths)))

    async def ask(name):
        status, answer = await embedded(app, model=name)
        assert status == 200, answer
        np.testing.assert_allclose(answer["data"][0]["embedding"], vectors[name], atol=ANY_BATCH)

    async def main():
        for _ in range(3):
            await asyncio.gather(*(ask("abcd"[i % 4]) for i in range(40)))

    run(main())
    assert Watched.most == 2
    cache = app.state.registry._cache
    until(lambda: not any(entry.users for entry in cache._entries.values()))


def expected_query(folder):
    with Encoder.load(folder, threads=1) as encoder:
        return encoder.encode_query(TEXT)


def test_what_requests_use_is_not_closed(folders, serve, reached):
    """Who needs its room waits, is told to come back in time, and gets it afterwards."""
    paths = [folders / "a", folders / "b"]
    app = serve(*paths, memory_limit=1.5 * max(map(size, paths)))
    cache, loads = app.state.registry._cache, app.state.registry._loader._loads

    def waiting():
        return sum(load.waiting for load in loads.values())

    async def main():
        await embedded(app, model="a")
        held = Watched.by_name["a"]
        held.began.clear()
        held.free.clear()
        using = Call(app, "/embed", {"inputs": TEXT, "model": "a", "prompt_name": "query"})
        await asyncio.to_thread(held.began.wait, 60)
        late = Call(app, "/embed", {"inputs": TEXT, "model": "b"},
                    headers={"X-Request-Timeout": "0.3"})  # fmt: skip
        status, answer = await late.answer()
        assert (status, answer["error"]) == (503, "b is not loaded yet: try again")
        assert late.headers[b"retry-after"] == b"1"
        gone = Call(app, "/embed", {"inputs": TEXT, "model": "b"})
        await reached(lambda: waiting() >= 1)
        gone.hang_up()
        await gone.task
        late = [asyncio.ensure_future(embedded(app, model=name)) for name in "bab"]
        await reached(lambda: waiting() >= 2)
        assert Watched.opened == [held]
        held.free.set()
        assert (await using.answer())[0] == 200
        assert [(await one)[0] for one in late] == [200] * 3

    run(main())
    assert Watched.most == 1
    until(lambda: not any(entry.users for entry in cache._entries.values()))


def test_a_user_that_never_ends_is_waited_for_only_so_long(folders, serve, reached):
    paths = [folders / "a", folders / "b"]
    app = serve(*paths, memory_limit=1.5 * max(map(size, paths)), timeout=0.5)

    async def main():
        reads_nothing = Call(app, "/embed_all", {"inputs": [TEXT] * 100, "model": "a"}, takes=1)
        await reached(lambda: reads_nothing.status is not None)
        statuses = set()
        for _ in range(100):
            statuses.add((await embedded(app, model="b"))[0])
            if 200 in statuses:
                break
        assert 200 in statuses <= {200, 429, 503}
        reads_nothing.reads.set()
        await reads_nothing.task

    run(main())
    assert Watched.most == 1
    until(lambda: len(Watched.opened) == 1)


def test_too_many_wait_for_models(folders, serve):
    app = serve(folders / "a", folders / "b", max_items=1, max_waiting_texts=1,
                memory_limit=1.5 * size(folders / "a"))  # fmt: skip
    loader, model = app.state.registry._loader, app.state.registry.models.by_name["b"]
    loader._loads[model] = type("Load", (), {"waiting": 1})
    try:
        with pytest.raises(OverloadedError, match="wait for models to be loaded"):
            run(loader.use(model, 1.0))
    finally:
        del loader._loads[model]


@pytest.mark.parametrize("limit", [None, 2.5])
def test_each_is_reloaded_by_itself(limit, bundle, folders, serve, tmp_path, caplog):
    """A change in one touches no other, and one that cannot be loaded keeps its old self."""
    paths = [shutil.copytree(folders / name, tmp_path / name) for name in "abc"]
    limit = limit and limit * max(map(size, paths))
    app = serve(*paths, memory_limit=limit)
    registry = app.state.registry
    run(check_vector(app, folders / "b", model="b"))
    b, old = registry.models.by_name["b"], registry.models.by_name["a"]
    service = registry.services["b"]

    def exchange(new, path):
        path.rename(path.with_name(f"{path.name}-old{time.monotonic()}"))
        new.rename(path)

    exchange(with_prompt(bundle, tmp_path / "new", "another river "), paths[0])
    registry.reload()
    until(lambda: registry.models.by_name["a"] is not old)
    assert registry.models.by_name["b"] is b
    assert limit or registry.services["b"] is service
    assert run(check_vector(app, paths[0], model="a")) == "a"

    kept = expected_query(paths[0])
    damaged = shutil.copytree(folders / "d", tmp_path / "damaged")
    (damaged / "tokenizer.json").write_text("{}")
    exchange(damaged, paths[0])
    registry.reload()
    until(lambda: "the models stay as they were" in caplog.text)
    for name in "bcbc":  # with a limit, these would push out the old one, which is not there again
        run(check_vector(app, folders / name, model=name))
    status, answer = run(embedded(app, model="a"))
    assert status == 200, answer
    np.testing.assert_allclose(answer["data"][0]["embedding"], kept, atol=ANY_BATCH)


def test_a_model_that_was_replaced_is_loaded_again(bundle, folders, serve, tmp_path):
    paths = [shutil.copytree(folders / name, tmp_path / name) for name in "ab"]
    app = serve(*paths, memory_limit=1.5 * max(map(size, paths)))  # holds a
    paths[1].rename(tmp_path / "away")
    status, answer = run(embedded(app, model="b"))
    assert (status, answer["error"]["code"]) == (503, "not_loaded")
    assert str(tmp_path) not in json.dumps(answer)
    with_prompt(bundle, paths[1], "another river ")
    until(lambda: run(embedded(app, model="b"))[0] == 200)
    assert run(check_vector(app, paths[1], model="b")) == "b"


def test_a_new_name_that_another_has_is_refused(bundle, folders, serve, tmp_path, caplog):
    pack = make_pack(tmp_path / "pack", {"fr": bundle}, "fr")
    app = serve(folders / "a", pack, model_aliases=("mirror-de=a",))
    other = make_pack(tmp_path / "other", {"fr": bundle, "de": bundle}, "fr")
    pack.rename(tmp_path / "old")
    other.rename(pack)
    app.state.registry.reload()
    until(lambda: "two models are called 'mirror-de'" in caplog.text)
    assert run(check_vector(app, folders / "a", model="mirror-de")) == "a"
    assert list(app.state.registry.models.by_name) == ["a", "mirror-fr"]
    until(lambda: len(Watched.opened) == 2)


def test_a_flood_on_one_model_starves_no_other(folders, serve, reached):
    """Counted in runs: while a flood on one waits, the other gets every second run."""
    app = serve(folders / "a", folders / "b", token_budget=16)
    order = []
    # Turns are shared by time, and the seconds of a run are the machine's: here each takes as long.
    app.state.registry._turns._clock = lambda: len(order) / 1000
    for name in "ab":
        model = Watched.by_name[name].pipeline.model
        model.run_batch = noting(order, name, model.run_batch)
    gate = Watched.by_name["a"].free
    queue = app.state.registry.services["b"].scheduler._queue

    # Equal texts would run once.
    words = itertools.product(("river", "water", "the", "happy", "a", "dog"), repeat=3)
    texts = list(map(" ".join, words))[:200]

    def tokenized():
        return [one.rows is not None for one in list(queue.admission.open)]

    async def main():
        gate.clear()
        flood = [Call(app, "/embed", {"inputs": texts[10 * i : 10 * i + 10], "model": "a"})
                 for i in range(20)]  # fmt: skip
        await asyncio.to_thread(Watched.by_name["a"].began.wait, 60)
        others = [Call(app, "/embed", {"inputs": text, "model": "b"}) for text in texts[:5]]
        await reached(lambda: tokenized() == 5 * [True])
        gate.set()
        for call in [*flood, *others]:
            assert (await call.answer())[0] == 200

    Watched.by_name["a"].began.clear()
    run(main())
    first, last = order.index("b"), len(order) - 1 - order[::-1].index("b")
    assert last - first <= 20 < len(order) - last


def noting(order, name, run_batch):
    lock = threading.Lock()

    def noted(batch, *, normalize):
        with lock:
            order.append(name)
        return run_batch(batch, normalize=normalize)

    return noted


@pytest.mark.full
def test_workers_and_the_command_line(folders, start_server):
    server = start_server(folders / "a", folders / "pack", folders / "b", "--workers", 2,
                          "--memory-limit", 5 * size(folders / "a") // 2)  # fmt: skip
    for name in ("a", "b", "mirror-fr", "mirror-de") * 2:
        status, answer = server.post("/embed", {"inputs": TEXT, "model": name})
        assert status == 200, answer
    assert server.stop() == 0
