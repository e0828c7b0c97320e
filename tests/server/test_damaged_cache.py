"""A cache of vectors that is damaged, while the server runs or before it starts, fails nothing."""

import numpy as np
import pytest

from asgi_calls import Call, run
from mirror_rt import Encoder
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server import ServerConfig, create_app
from rounding import ANY_BATCH

TEXTS = [f"the river {i}" for i in range(40)]


@pytest.fixture(scope="module")
def expected(bundle):
    with Encoder.load(bundle, threads=1) as encoder:
        return encoder.encode(TEXTS)


def flip(path):
    """Change a bit in each page but the first."""
    data = bytearray(path.read_bytes())
    for at in range(6000, len(data), 4096):
        data[at] ^= 1
    path.write_bytes(bytes(data))


def zero(path):
    """Empty every page but the first."""
    path.write_bytes(path.read_bytes()[:4096] + bytes(path.stat().st_size - 4096))


def cut(path):
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize("damage", [flip, zero, cut])
@pytest.mark.parametrize("while_it_runs", [True, False])
def test_no_request_and_no_start_fails(damage, while_it_runs, bundle, tmp_path, expected):
    path = tmp_path / "cache"
    config = ServerConfig(load=LoadOptions(threads=1, cache=path))

    async def ask(app):
        status, found = await Call(app, "/embed", {"inputs": TEXTS}).answer()
        assert status == 200
        np.testing.assert_allclose(found, expected, atol=ANY_BATCH)

    async def ready(app):
        assert (await Call(app, "/ready").answer())[0] == 200

    def serve(then):
        app = create_app(bundle, config)
        try:
            app.state.registry.wait_until_warm()
            run(ask(app))
            then()
            run(ask(app))
            run(ready(app))
        finally:
            app.state.registry.close()

    serve((lambda: damage(path)) if while_it_runs else lambda: None)
    if not while_it_runs:
        damage(path)
        serve(lambda: None)
