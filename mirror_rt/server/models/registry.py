"""Hold an application's state: models, services, limits, metrics, and whether it is ready."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, MutableMapping
from typing import Literal
from weakref import WeakKeyDictionary

from mirror_rt.bundle.model_kinds import Gives
from mirror_rt.encoding.model_cache import ModelCache, checked_limit
from mirror_rt.errors import ClosedError, MirrorError
from mirror_rt.scheduling import SchedulerStatistics, Turns
from mirror_rt.server.admission.api_keys import ApiKeys
from mirror_rt.server.admission.holding import BodyRoom, Unread
from mirror_rt.server.admission.problems import Problem, try_again
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.exchange import Exchange
from mirror_rt.server.models.loader import Loader
from mirror_rt.server.models.reload import Reloader
from mirror_rt.server.models.served_models import Catalog, Models, NamedEncoder
from mirror_rt.server.models.service import ModelFacts, ModelService
from mirror_rt.server.monitoring.metrics import Metrics
from mirror_rt.server.monitoring.recent import Recent
from mirror_rt.server.monitoring.request_log import RequestLog
from mirror_rt.server.monitoring.tracing import tracing_from_environment

logger = logging.getLogger("mirror_rt.server")

# /ready runs the model; everybody who asks within _PROBE_KEPT seconds gets the same answer.
_PROBE_SECONDS, _PROBE_KEPT = 5.0, 0.5
# A model that has let nobody in for this time, in seconds, and would not now, is not ready.
_REFUSED_SECONDS = 10.0
# Limits for all requests together: how many bodies of the largest size, and how many bytes.
_BODIES, _MOST_BYTES = 4, 64 << 20


class Registry:
    """The state that all request handlers share. Its models may be replaced while they serve."""

    def __init__(self, models: Catalog, config: ServerConfig, keys: ApiKeys) -> None:
        self.config = config
        self.models = models
        """The models that serve now."""
        self.facts: MutableMapping[NamedEncoder, ModelFacts] = WeakKeyDictionary()
        """The facts of each model, also of those that have left the memory."""
        self.began = time.monotonic()
        self.metrics = Metrics(config.timeout)
        self.recent = Recent()
        self.requests = RequestLog(self.metrics, self.recent)
        self.tracing = tracing_from_environment()
        self.keys = keys
        self.bodies = BodyRoom(max(_BODIES * config.max_body_bytes, _MOST_BYTES))
        self.unread = Unread(_MOST_BYTES)
        self._turns = Turns()
        self._cache = self._make_cache()
        self._loader = Loader(self._cache, config, self._look_again)
        self.warm = threading.Event()
        self._failure: MirrorError | None = None
        self.stopping = False  # whether the server should get no more requests
        self._reloader: Reloader | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probed = 0.0
        try:
            names = reversed(models.by_name.values())
            self._load_each(sorted(names, key=lambda model: model is models.default))
        except BaseException:
            self._cache.drop(self._cache.loaded(), 0)
            raise
        self._say_models()
        self._warming = threading.Thread(target=self._warm_up, name="mirror_rt-warm-up")
        self._warming.start()
        keys.watch()

    @property
    def services(self) -> dict[str, ModelService]:
        """Return the services of the models that serve now and are in memory, by name."""
        loaded, models = self._cache.loaded(), self.models.by_name.values()
        return {model.name: loaded[model] for model in models if model in loaded}

    def counts(self, model: NamedEncoder) -> SchedulerStatistics:
        """Return the counts of a model since it was loaded, and of its waiting texts."""
        service = self.services.get(model.name)
        return SchedulerStatistics() if service is None else service.scheduler.statistics()

    async def service(
        self, exchange: Exchange, model: str | None, lang: str | None, gives: Gives
    ) -> ModelService:
        """Return the service that a request asks for, and keep its model until the answer is sent.

        `gives` is as in `Catalog.find`.
        Problem 404 or 422 says that there is none, and 503 that it is not ready or not loaded.
        """
        until = None
        while True:
            found = self.models.find(model, lang, gives)
            exchange.model = found.name
            self.check_warm()
            now = time.monotonic()
            until = until or now + exchange.timeout(self.config.timeout)
            try:
                use = await self._loader.use(found, until - now)
            except ClosedError:
                if self.stopping or found in self.models.by_name.values():
                    raise
                continue  # it was replaced
            exchange.held.callback(self._loader.release, use)
            if (service := use.model) is not None:
                exchange.max_length = service.facts.max_length
                return service

    def check_warm(self) -> None:
        """Raise Problem 503 while models are not warm, or if warming them up failed."""
        if not self.warm.is_set():
            why = "warming up" if self._failure is None else "a model failed when it was first run"
            raise try_again(f"not ready: {why}")

    def wait_until_warm(self) -> None:
        """Wait for the warm-up; raise the error of a model that failed in it."""
        self._warming.join()
        if self._failure is not None:
            raise self._failure

    def watch(self) -> None:
        """Let `reload` load changed sources again, and look for changes regularly."""
        sources = [one for one in self.models.sources if one.source is not None]
        self._reloader = Reloader(sources, self.config.reload_interval, self.replace, self.metrics)

    def reload(self) -> None:
        """Read the keys and the models again soon; signal handlers may call this."""
        self.keys.ask()
        self._look_again()

    def replace(self, old: Models, new: Models) -> None:
        """Warm up other models of a source, serve them from the next request on, and close the old.

        This returns when the last request to the old models is answered and they are closed. If one
        of the new models does not run, they are closed, and the old ones stay.
        """
        added, gone = new.by_name.values(), old.by_name.values()
        self._cache.add({model: model.bytes for model in added})
        self._cache.pin(gone)  # they cannot be loaded again
        try:
            with self._cache.beyond_limit():
                self._load_each(added)
                models = self.models.replaced(old, new)
                for service in [self._cache.loaded()[model] for model in added if model.encoder]:
                    service.warm_up()
        except BaseException:
            self._cache.drop(added, 0)
            raise
        self._warming.join()
        self.models = models
        self._say_models()
        if all(service.warm for service in self.services.values()):
            self._failure = None
            self._set_warm()
        self._cache.drop(gone)

    async def check_ready(self) -> None:
        """Run every model in memory; Problem 503 if one does not answer, or refuses everybody."""
        self.check_warm()
        if self.stopping:
            raise Problem(503, "not ready: stopping", "not_ready")
        if (why := self.refusing) is not None:
            raise try_again(f"not ready: {why}")
        if self._probe is None or (
            self._probe.done() and time.monotonic() - self._probed > _PROBE_KEPT
        ):
            self._probe = asyncio.create_task(self._run_models())
        await asyncio.shield(self._probe)

    async def _run_models(self) -> None:
        try:
            for model in self._cache.loaded():  # the others are loaded again when they are needed
                if (use := self._cache.use(model)) is None or use.model is None:
                    continue
                try:
                    await use.model.probe(_PROBE_SECONDS)
                finally:
                    self._loader.release(use)
        except MirrorError as error:
            logger.error("a model does not run: %s", type(error).__name__)
            raise Problem(503, "not ready: a model does not answer", "not_ready") from error
        finally:
            self._probed = time.monotonic()

    @property
    def refusing(self) -> str | None:
        """Return which model has refused everybody for long, and would still, and why."""
        for name, service in self.services.items():
            found = service.scheduler.refusing()
            if found is not None and found[0] >= _REFUSED_SECONDS:
                return f"{name} has refused every request for {found[0]:.0f} s: {found[1]}"
        return None

    @property
    def state(self) -> Literal["ready", "warming up", "failed", "stopping", "refusing"]:
        """Return the state without running a model; requests are accepted if it is ready."""
        if self.stopping:
            return "stopping"
        if self.warm.is_set():
            return "ready" if self.refusing is None else "refusing"
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
        self.keys.close()
        self._loader.close()
        self._cache.drop(self._cache.loaded(), 0)
        self._cache.close()
        if self.tracing is not None:
            self.tracing.close()

    def _say_models(self) -> None:
        self.metrics.serve({
            (name, one.digest or "") for one in self.models.sources for name in one.by_name
        })  # fmt: skip

    def _make_cache(self) -> ModelCache[NamedEncoder, ModelService]:
        sizes = {model: model.bytes for model in self.models.by_name.values()}
        limit = self.config.memory_limit
        return ModelCache(
            self._open, sizes,
            limit=None if limit is None else checked_limit(limit, sizes),
            pinned=[model for model in sizes if model.encoder is not None],
            patience=self.config.timeout, owner="server",
        )  # fmt: skip

    def _open(self, model: NamedEncoder) -> ModelService:
        """Load a model; one that comes and goes is warm before requests use it."""
        metrics = self.metrics.of_model(model.name)
        service = ModelService(model, self.config, metrics, self.recent, self._turns)
        self.facts[model] = service.facts
        self.metrics.loads.labels(model.name).inc()
        if model.encoder is None:
            try:
                service.warm_up()
            except BaseException:
                service.close()
                raise
        return service

    def _load_each(self, models: Iterable[NamedEncoder]) -> None:
        """Load models one after the other: each must be loadable, whatever stays in memory."""
        for model in models:
            with self._cache.lease(model):
                pass

    def _look_again(self) -> None:
        if self._reloader is not None:
            self._reloader.ask()

    def _warm_up(self) -> None:
        for service in self.services.values():
            try:
                if not service.warm:
                    service.warm_up()
            except MirrorError as error:
                self._failure = error
                logger.error("a model failed when it was first run: %s", error)
        if self._failure is None:
            self._set_warm()
            logger.info("ready: %s", ", ".join(self.models.by_name))

    def _set_warm(self) -> None:
        self.warm.set()
        self.metrics.ready.set(0 if self.stopping else 1)
