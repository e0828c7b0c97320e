"""All that an application holds: models, their services, limits, metrics, whether it is ready."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from mirror_rt.errors import MirrorError
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.exchange import Exchange
from mirror_rt.server.metrics import Metrics
from mirror_rt.server.models import Models
from mirror_rt.server.problems import Problem
from mirror_rt.server.security import ApiKeys
from mirror_rt.server.service import ModelService

__all__ = ["Registry"]

logger = logging.getLogger("mirror_rt.server")

# /ready runs the model; whoever asks within so many seconds gets the same answer.
_PROBE_SECONDS, _PROBE_KEPT = 5.0, 0.5


class Registry:
    """What the handlers of requests share.

    Args:
        models: loaded.
        config: limits, and the keys.
    """

    def __init__(self, models: Models, config: ServerConfig) -> None:
        self.models = models
        self.config = config
        self.metrics = Metrics()
        self.keys = ApiKeys(config.api_keys, config.api_keys_file)
        self.services = {
            name: ModelService(model, config, self.metrics.of_model(name))
            for name, model in models.by_name.items()
        }
        self.warm = threading.Event()
        self._failure: str | None = None
        self._stopping = False
        self._probe: asyncio.Task[None] | None = None
        self._probed = 0.0
        self._warming = threading.Thread(target=self._warm_up, name="mirror_rt-warm-up")
        self._warming.start()

    def service(self, exchange: Exchange, model: str | None, lang: str | None) -> ModelService:
        """Return the service of what a request asks for; Problem 404, 422 or 503."""
        found = self.models.find(model, lang)
        exchange.model = found.name
        self.check_warm()
        return self.services[found.name]

    def check_warm(self) -> None:
        """Raise Problem 503 while models are not warm, or could not be."""
        if not self.warm.is_set():
            why = self._failure or "warming up"
            raise Problem(503, f"not ready: {why}", "not_ready", headers={"retry-after": "1"})

    async def check_ready(self) -> None:
        """Run every model; Problem 503 where one does not answer."""
        self.check_warm()
        if self._stopping:
            raise Problem(503, "not ready: stopping", "not_ready")
        if self._probe is None or (
            self._probe.done() and time.monotonic() - self._probed > _PROBE_KEPT
        ):
            self._probe = asyncio.create_task(self._run_models())
        await asyncio.shield(self._probe)

    async def _run_models(self) -> None:
        try:
            for service in self.services.values():
                await service.probe(_PROBE_SECONDS)
        except MirrorError as error:
            logger.error("a model does not run: %s", type(error).__name__)
            raise Problem(503, "not ready: a model does not answer", "not_ready") from error
        finally:
            self._probed = time.monotonic()

    def stop(self) -> None:
        """Say from now on that nothing more should be sent here."""
        self._stopping = True
        self.metrics.ready.set(0)

    def close(self) -> None:
        """Run what was accepted, and free the models."""
        self.stop()
        self._warming.join()
        for service in self.services.values():
            service.close(timeout=self.config.timeout)
        self.models.close()

    def _warm_up(self) -> None:
        try:
            for service in self.services.values():
                service.warm_up()
        except MirrorError as error:
            self._failure = "a model failed when it was first run"
            logger.error("%s: %s", self._failure, error)
        else:
            self.warm.set()
            self.metrics.ready.set(1)
            logger.info("ready: %s", ", ".join(self.services))
