"""Hold an application's state: models, services, limits, metrics, and whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mirror_rt.errors import MirrorError
from mirror_rt.server.admission.api_keys import ApiKeys
from mirror_rt.server.admission.holding import BodyRoom, Unread
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.reload import Reloader
from mirror_rt.server.models.served_models import Models
from mirror_rt.server.models.service import ModelService
from mirror_rt.server.monitoring.metrics import Metrics
from mirror_rt.server.monitoring.recent import Recent
from mirror_rt.server.monitoring.tracing import tracing_from_environment

if TYPE_CHECKING:
    from mirror_rt.server.http.exchange import Exchange

logger = logging.getLogger("mirror_rt.server")

# /ready runs the model; everybody who asks within _PROBE_KEPT seconds gets the same answer.
_PROBE_SECONDS, _PROBE_KEPT = 5.0, 0.5
# Limits for all requests together: how many bodies of the largest size, and how many bytes.
_BODIES, _MOST_BYTES = 4, 64 << 20
_LOOK_EVERY = 0.02  # seconds


@dataclass(eq=False)
class Generation:
    """Models that serve together, until a reload replaces them.

    Attributes:
        models: models by name and language.
        services: services that run them, by model name.
        users: number of requests that use the models now.
    """

    models: Models
    services: Mapping[str, ModelService]
    users: int = 0

    def warm_up(self) -> None:
        """Run every model once; MirrorError if one does not run."""
        for service in self.services.values():
            service.warm_up()

    def close(self, timeout: float | None = None) -> None:
        """Finish waiting work within `timeout` seconds, and free the models."""
        for service in self.services.values():
            service.close(timeout=timeout)
        self.models.close()

    def close_when_idle(self, timeout: float) -> None:
        """Close once no request uses the models, and after `timeout` seconds in any case."""
        until = time.monotonic() + timeout
        while self.users and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
        self.close(timeout)


class Registry:
    """The state that all request handlers share. Its models may be replaced while they serve."""

    def __init__(self, models: Models, config: ServerConfig, keys: ApiKeys) -> None:
        self.config = config
        self.began = time.monotonic()
        self.metrics = Metrics()
        self.recent = Recent()
        self.tracing = tracing_from_environment()
        self.keys = keys
        self.bodies = BodyRoom(max(_BODIES * config.max_body_bytes, _MOST_BYTES))
        self.unread = Unread(_MOST_BYTES)
        self._now = self._serving(models)
        self._swapping = threading.Lock()
        self.warm = threading.Event()
        self._failure: MirrorError | None = None
        self.stopping = False  # whether the server should get no more requests
        self._reloader: Reloader | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probed = 0.0
        self._warming = threading.Thread(target=self._warm_up, name="mirror_rt-warm-up")
        self._warming.start()

    @property
    def models(self) -> Models:
        """Return the models that serve now."""
        return self._now.models

    @property
    def services(self) -> Mapping[str, ModelService]:
        """Return the services of the models that serve now, by name."""
        return self._now.services

    @contextlib.contextmanager
    def use(self) -> Iterator[Generation]:
        """Let a block use, until it ends, the models that serve when it begins."""
        with self._swapping:
            serving = self._now
            serving.users += 1
        try:
            yield serving
        finally:
            with self._swapping:
                serving.users -= 1

    def service(self, exchange: Exchange, model: str | None, lang: str | None) -> ModelService:
        """Return the service that a request asks for; Problem 404, 422 or 503 if there is none."""
        serving = exchange.generation or self._now
        found = serving.models.find(model, lang)
        exchange.model = found.name
        self.check_warm()
        return serving.services[found.name]

    def check_warm(self) -> None:
        """Raise Problem 503 while models are not warm, or if warming them up failed."""
        if not self.warm.is_set():
            why = "warming up" if self._failure is None else "a model failed when it was first run"
            raise Problem(503, f"not ready: {why}", "not_ready", headers={"retry-after": "1"})

    def wait_until_warm(self) -> None:
        """Wait for the warm-up; raise the error of a model that failed in it."""
        self._warming.join()
        if self._failure is not None:
            raise self._failure

    def reload_from(self, source: str | Path) -> None:
        """Let `reload` load the models again if `source` has changed, and check that regularly."""
        self._reloader = Reloader(source, self.config, self.models, self.replace)

    def reload(self) -> None:
        """Read the keys again now and the models soon; signal handlers may call this."""
        self.keys.reload()
        if self._reloader is not None:
            self._reloader.ask()

    def replace(self, models: Models) -> None:
        """Warm up other models, serve them from the next request on, and close the old ones.

        This returns when the last request to the old models is answered and they are closed. If one
        of the new models does not run, they are closed, and the old ones stay.
        """
        new = self._serving(models)
        try:
            new.warm_up()
        except BaseException:
            new.close()
            raise
        self._warming.join()
        self._failure = None
        with self._swapping:
            old, self._now = self._now, new
        self._set_warm()
        old.close_when_idle(self.config.timeout)

    async def check_ready(self) -> None:
        """Run every model; Problem 503 if one does not answer."""
        self.check_warm()
        if self.stopping:
            raise Problem(503, "not ready: stopping", "not_ready")
        if self._probe is None or (
            self._probe.done() and time.monotonic() - self._probed > _PROBE_KEPT
        ):
            self._probe = asyncio.create_task(self._run_models())
        await asyncio.shield(self._probe)

    async def _run_models(self) -> None:
        try:
            with self.use() as serving:
                for service in serving.services.values():
                    await service.probe(_PROBE_SECONDS)
        except MirrorError as error:
            logger.error("a model does not run: %s", type(error).__name__)
            raise Problem(503, "not ready: a model does not answer", "not_ready") from error
        finally:
            self._probed = time.monotonic()

    @property
    def state(self) -> Literal["ready", "warming up", "failed", "stopping"]:
        """Return what is known without running a model; requests are accepted if it is ready."""
        if self.stopping:
            return "stopping"
        if self.warm.is_set():
            return "ready"
        return "warming up" if self._failure is None else "failed"

    def stop(self) -> None:
        """Report from now on that no more requests should be sent here."""
        self.stopping = True
        self.metrics.ready.set(0)

    def close(self) -> None:
        """Finish the accepted requests, and free the models."""
        self.stop()
        self._warming.join()
        if self._reloader is not None:
            self._reloader.close()
        self._now.close(self.config.timeout)
        if self.tracing is not None:
            self.tracing.close()

    def _serving(self, models: Models) -> Generation:
        services = {
            name: ModelService(model, self.config, self.metrics.of_model(name), self.recent)
            for name, model in models.by_name.items()
        }
        return Generation(models, services)

    def _warm_up(self) -> None:
        try:
            self._now.warm_up()
        except MirrorError as error:
            self._failure = error
            logger.error("a model failed when it was first run: %s", error)
        else:
            self._set_warm()
            logger.info("ready: %s", ", ".join(self.services))

    def _set_warm(self) -> None:
        self.warm.set()
        self.metrics.ready.set(0 if self.stopping else 1)
