"""Serve by Ray Serve: the server's ASGI application in every replica of a deployment.

>>> from ray import serve
>>> from mirror_rt.server.ray_serve import ray_application
>>> serve.run(ray_application("/shared/bundle", ray_actor_options={"num_cpus": 2}))
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from mirror_rt.errors import require
from mirror_rt.server import ServerConfig, create_app
from mirror_rt.server.models.sources import Sources, listed

if TYPE_CHECKING:
    from starlette.applications import Starlette

# A replica makes its own batches, so it gets many requests; the autoscaler begins earlier.
_MOST_OPEN = 256
_AUTOSCALING = {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 32}


def ray_application(source: Sources, config: ServerConfig | None = None, **options: Any) -> Any:
    """Return an application for `ray.serve.run`, with all paths of `mirror-rt serve`.

    A replica loads the models when it starts and counts as started when they are warm. It computes
    with as many threads as Ray gives it processors (`num_cpus`), unless `config` says otherwise.
    Ray sends a replica that it stops no more requests and lets it answer those that it has.

    Args:
        source: a folder that every node sees, or a hub name, of a bundle or a pack, or several.
        config: limits, keys, and how to load; None for the defaults.
        options: those of `ray.serve.deployment` (`ray_actor_options`, `autoscaling_config`,
            `num_replicas`, `name` ...). Unless given, 1 to 4 replicas, of 32 open requests each.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
    """
    serve: Any = require("ray.serve", extra="ray-serve", purpose="serving by Ray")
    options = {"max_ongoing_requests": _MOST_OPEN} | options
    if "num_replicas" not in options:
        options = {"autoscaling_config": _AUTOSCALING} | options

    def build() -> Starlette:  # Ray takes a partial function for an application
        return _build(list(map(str, listed(source))), config or ServerConfig())

    return serve.deployment(**options)(serve.ingress(build)()).bind()


def _build(source: list[str], config: ServerConfig) -> Starlette:
    """Make the application in a replica."""
    ray: Any = require("ray", extra="ray-serve", purpose="serving by Ray")
    if config.load.threads is None:
        given = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
        load = dataclasses.replace(config.load, threads=max(1, int(given)))
        config = dataclasses.replace(config, load=load)
    app = create_app(source, config)
    app.state.registry.wait_until_warm()
    return app
