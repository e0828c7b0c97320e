"""What the tests of the server share: processes by configuration, and applications in this one."""

import asyncio
import contextlib

import pytest

from mirror_rt import Encoder
from mirror_rt.cli.parsing.invocation import add_options
from mirror_rt.cli.parsing.parser import Parser
from mirror_rt.cli.serve import Serve
from mirror_rt.server import Models, NamedEncoder, ServerConfig, create_app
from mirror_rt.server.http.operations import MODEL_NAME
from server_process import running

KEY = "sk-of-the-tests"


@pytest.fixture(scope="session")
def encoder(bundle):
    with Encoder.load(bundle, threads=1) as encoder:
        yield encoder


@pytest.fixture(scope="session")
def serve_variables():
    """The variables of the environment that `mirror-rt serve` reads, but for that of the keys."""
    parser = Parser()
    add_options(parser, Serve)
    return {f"MIRROR_RT_SERVE_{action.dest.upper()}" for action in parser._actions}


@pytest.fixture(scope="session")
def key():
    return KEY


@pytest.fixture(scope="session")
def open_server(bundle, tiny_reranker, tiny_sparse):
    """Serves a bundle, also as tiny and by the name of the examples; a reranker; word weights."""
    reranker, words = tiny_reranker("bert"), tiny_sparse("bert")
    aliases = (f"{MODEL_NAME}={bundle}", f"tiny={MODEL_NAME}", f"ranks={reranker}",
               f"words={words}")  # fmt: skip
    options = [word for alias in aliases for word in ("--model-alias", alias)]
    with running(bundle, reranker, words, *options) as server:
        yield server


@pytest.fixture(scope="session")
def keyed_server(bundle):
    """Serves tiny to those who have the key."""
    with running(bundle, "--model-name", "tiny", MIRROR_RT_SERVE_API_KEYS=KEY) as server:
        yield server


@pytest.fixture(scope="session")
def application():
    """From an encoder, called tiny, and options to a context with an application that serves it."""

    @contextlib.contextmanager
    def application(encoder, *aliases, **config):
        models = Models([NamedEncoder("tiny", encoder, None, 0)], "tiny", aliases=aliases)
        app = create_app(models, ServerConfig(**config))
        registry = app.state.registry
        registry.wait_until_warm()
        try:
            yield app
        finally:  # the encoder stays open
            registry.stop()
            for service in registry.services.values():
                service.scheduler.close()

    return application


@pytest.fixture
def make(application, encoder):
    """Make applications that serve the encoder of a file; they end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **config: stack.enter_context(application(encoder, **config))


@pytest.fixture(scope="session")
def reached():
    """Await a condition, while the loop goes on."""

    async def reached(condition):
        while not condition():
            await asyncio.sleep(0.001)

    return reached
