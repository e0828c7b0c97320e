"""Reload models while serving: a replaced bundle or pack takes the place of the old one."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mirror_rt.bundle.resolve import written_in_place
from mirror_rt.errors import BundleError, ConfigError, MirrorError
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.served_models import Models, load_folder, manifest_digest
from mirror_rt.server.monitoring.logs import where

logger = logging.getLogger("mirror_rt.server")


class Reloader:
    """Watch the manifest, on request and at intervals, and load the models again if it changes.

    Args:
        source, config: what serves, as `load_models` takes it.
        models: models that serve now.
        replace: serves other models in their place; raises an error if they do not run.
    """

    def __init__(
        self, source: str | Path, config: ServerConfig, models: Models,
        replace: Callable[[Models], None],
    ) -> None:  # fmt: skip
        self._source, self._config, self._replace = source, config, replace
        self._digest, self._files = models.digest, models.files
        self._complaint = ""
        # Of all queues, only this one may be used by a signal handler.
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mirror_rt-reload", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Look at the manifest soon."""
        self._asked.put(True)

    def close(self) -> None:
        """Stop looking; wait for models that are being loaded."""
        self._asked.put(False)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                if not self._asked.get(timeout=self._config.reload_interval):
                    return
                self._look(asked=True)
            except queue.Empty:
                self._look(asked=False)

    def _look(self, *, asked: bool) -> None:
        try:
            folder = self._config.load.find(self._source)
            digest = manifest_digest(folder)
            if digest == self._digest and (written := written_in_place(self._files)):
                raise BundleError(
                    f"{written[0]} was written to while it serves, and vectors may be wrong: "
                    "restart the server, and replace a bundle by renaming a folder to its place"
                )
            if digest == self._digest:
                self._complaint = ""
                if asked:
                    logger.info("%s has not changed", self._source)
                return
            if self._config.load.cuda_graphs:
                raise ConfigError(
                    "CUDA graphs are captured while nothing else uses the card: restart the server"
                )
            began = time.monotonic()
            models = load_folder(folder, self._config, self._source)
            self._replace(models)
        except (MirrorError, OSError) as error:
            self._keep(" ".join(str(error).split()), asked=asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, what serves goes on
            self._keep(where(error), asked=asked)
        else:
            self._digest, self._files, self._complaint = digest, models.files, ""
            logger.info("%s was loaded again in %.1f s and serves: %s", self._source,
                        time.monotonic() - began, ", ".join(models.by_name))  # fmt: skip

    def _keep(self, why: str, *, asked: bool) -> None:
        """Log why the models stay as they were; repeat the same reason only when asked."""
        if asked or why != self._complaint:
            logger.error("the models stay as they were: %s", why)
        self._complaint = why
