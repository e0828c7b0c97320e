"""Make the ASGI application: its routes, and the middleware around them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mirror_rt.server.admission.api_keys import ApiKeys
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.exchange import Answer
from mirror_rt.server.http import pages
from mirror_rt.server.http.openapi import openapi_document  # it knows all operations
from mirror_rt.server.http.operations import OPERATIONS, always
from mirror_rt.server.http.request_gate import EXCHANGE, Endpoint, Gate, Handler, shape_of
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.served_models import Catalog, Models
from mirror_rt.server.models.sources import Sources, load_catalog


def create_app(source: Sources | Models, config: ServerConfig | None = None) -> Starlette:
    """Make an ASGI application that serves bundles and packs, or loaded models.

    The models are loaded here and warmed up in a thread; until that is done, /ready and requests
    are answered with 503. If the application is mounted in another one, it does not see the
    lifespan: call `app.state.registry.close()` at the end.

    Args:
        source: folder or hub name of a bundle or a pack, several of them, or loaded models. With
            several, the first one has the default model.
        config: limits, keys, and how to load; None for the defaults.

    Raises:
        BundleError: the source is neither a bundle nor a pack, or it is damaged.
        ConfigError: a value of `config` cannot be used.
        ProviderError: the execution providers are not available.
    """
    config = config or ServerConfig()
    keys = ApiKeys(config.api_keys, config.api_keys_file)  # first: models take long to load
    loaded = Catalog([source]) if isinstance(source, Models) else load_catalog(source, config)
    registry = Registry(loaded, config, keys)
    if not isinstance(source, Models):
        registry.watch()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        registry.close()

    posts = posts_of(registry)
    app = Starlette(
        routes=routes_of(registry, posts),
        middleware=_middleware(registry, posts),
        exception_handlers={HTTPException: _http_problem},
        lifespan=lifespan,
    )
    app.state.registry = registry
    return app


def posts_of(registry: Registry) -> dict[str, Endpoint]:
    """Return the endpoints of POST requests, by their paths."""
    return {
        path: Endpoint(registry, one.handler, one.path, reads=True)
        for one in OPERATIONS
        if one.request is not None
        for path in (one.path, *one.also)
    }


def routes_of(registry: Registry, posts: Mapping[str, Endpoint]) -> list[Route]:
    """Return all routes of a server."""
    gets: list[tuple[str, Handler]] = [
        ("/openapi.json", always(Answer(orjson.dumps(openapi_document())))),
        ("/docs", always(pages.DOCS_PAGE)),
        ("/docs/scalar.js", always(pages.RENDERER)),
        *(
            (path, one.handler)
            for one in OPERATIONS
            if one.request is None
            for path in (one.path, *one.also)
        ),
    ]
    # A POST to `/` does not get here, but the answer to any other method names both.
    routes = [
        Route(path, Endpoint(registry, handler, path),
              methods=["GET", "POST"] if path == "/" else ["GET"])
        for path, handler in gets
    ]  # fmt: skip
    return routes + [
        Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items() if path != "/"
    ]


def _middleware(registry: Registry, posts: Mapping[str, Endpoint]) -> list[Middleware]:
    origins = registry.config.cors_origins
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "x-request-id", "x-request-timeout"],
        expose_headers=["x-request-id", "x-truncated-items", "retry-after"],
    )
    fixed = {path: endpoint for path, endpoint in posts.items() if "{" not in path}
    gate = Middleware(Gate, registry=registry, posts=fixed)
    return [cors, gate] if origins else [gate]


async def _http_problem(request: Request, error: Exception) -> Response:
    """Answer a request that has no route, or whose route does not have its method."""
    assert isinstance(error, HTTPException)
    words = {404: "no such path: /docs lists them", 405: "the path does not have this method"}
    problem = Problem(error.status_code, words.get(error.status_code, "refused"), "not_found")
    request.scope[EXCHANGE].reason = problem.code
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return Response(
        shape_of(path)(problem), error.status_code, error.headers, media_type="application/json"
    )
