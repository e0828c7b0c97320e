"""Load models that requests wait for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from mirror_rt.encoding.model_cache import Entry, ModelCache
from mirror_rt.errors import ClosedError, MirrorError, OverloadedError
from mirror_rt.server.admission.problems import try_again
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.served_models import NamedEncoder
from mirror_rt.server.models.service import ModelService

logger = logging.getLogger("mirror_rt.server")

Use = Entry[ModelService]


@dataclass(slots=True)
class _Load:
    """A model that is being loaded, and the number of requests that wait for it.

    The result of `future` is a use that keeps the model until all of them use it.
    """

    future: Future[Use]
    waiting: int = 0


class Loader:
    """Loads models one after the other, in a thread of its own, into a cache.

    `failed` is called when a model could not be loaded.
    """

    def __init__(
        self, cache: ModelCache[NamedEncoder, ModelService], config: ServerConfig,
        failed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._cache, self._config, self._failed = cache, config, failed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-load")
        self._loads: dict[NamedEncoder, _Load] = {}

    async def use(self, model: NamedEncoder, seconds: float) -> Use:
        """Begin a use of a model, which has to be loaded within `seconds`.

        ClosedError says that the model was replaced meanwhile, Problem 503 that it was not loaded,
        and OverloadedError that too many requests wait for models, or that there is no room.
        """
        if (use := self._cache.use(model)) is not None:
            return use
        if sum(load.waiting for load in self._loads.values()) >= self._config.max_waiting_texts:
            raise OverloadedError("requests wait for models to be loaded", retry_after=1.0)
        load = self._loads.get(model)
        if load is None or load.future.done():
            load = self._loads[model] = _Load(self._thread.submit(self._load, model))
        load.waiting += 1
        try:
            async with asyncio.timeout(seconds):
                # Others wait for it, too, so that it is not cancelled with this task.
                loaded = await asyncio.shield(asyncio.wrap_future(load.future))
            return self._cache.use_again(loaded)
        except TimeoutError:
            raise try_again(f"{model.name} is not loaded yet: try again", "not_loaded") from None
        finally:
            load.waiting -= 1
            if not load.waiting:
                if self._loads.get(model) is load:
                    del self._loads[model]
                load.future.cancel()  # unless it has begun
                load.future.add_done_callback(self._end)

    def release(self, use: Use) -> None:
        """End a use; models that have to leave are closed in the thread."""
        if self._cache.release(use):
            with contextlib.suppress(RuntimeError):  # the thread has ended, as all will
                self._thread.submit(self._cache.close_leaving)

    def close(self) -> None:
        """Load no more."""
        self._thread.shutdown(cancel_futures=True)

    def _load(self, model: NamedEncoder) -> Use:
        try:
            return self._cache.acquire(model, self._config.timeout)
        except (ClosedError, OverloadedError):
            raise
        except (MirrorError, OSError) as error:
            logger.error("%s cannot be loaded: %s", model.name, " ".join(str(error).split()))
            self._failed()
            why = f"{model.name} cannot be loaded; the server's log has more"
            raise try_again(why, "not_loaded") from error

    def _end(self, future: Future[Use]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.release(future.result())
