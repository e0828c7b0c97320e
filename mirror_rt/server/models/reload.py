"""Reload models while serving: a replaced bundle or pack takes the place of the old one."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mirror_rt.bundle.resolve import written_in_place
from mirror_rt.errors import BundleError, ConfigError, MirrorError
from mirror_rt.server.models.served_models import Models
from mirror_rt.server.models.sources import load_folder
from mirror_rt.server.monitoring.logs import where
from mirror_rt.server.monitoring.metrics import Metrics
from mirror_rt.server.watching import Watcher
from mirror_rt.system import lock

logger = logging.getLogger("mirror_rt.server")

# Seconds between two attempts of a worker to load while another one does.
_TURN_SECONDS = 0.05


class Reloader(Watcher):
    """Watch the manifests of sources, as `Watcher` does, and load again those that have changed.

    `replace` serves other models in place of those of a source; it raises an error if they do not
    run. `metrics` learns of every attempt.
    """

    def __init__(
        self, models: Sequence[Models], interval: float | None,
        replace: Callable[[Models, Models], None], metrics: Metrics,
    ) -> None:  # fmt: skip
        super().__init__(interval)
        self._models, self._replace, self._metrics = list(models), replace, metrics
        self._complaints = dict.fromkeys(range(len(models)), "")
        self._closing = threading.Event()
        self.watch()

    def close(self) -> None:
        """Stop looking; wait for models that are being loaded."""
        self._closing.set()
        super().close()
        self._thread.join()

    def look(self, *, asked: bool = False) -> None:
        """Load changed sources again."""
        for number in self._complaints:
            self._look(number, asked=asked)
        self._metrics.reloaded.set(not any(self._complaints.values()))

    def _look(self, number: int, *, asked: bool) -> None:
        old = self._models[number]
        source = old.source
        assert source is not None
        try:
            folder = source.find()
            digest = source.digest(folder)
            if digest == old.digest and (written := written_in_place(old.files)):
                raise BundleError(
                    f"{written[0]} was written to while it serves, and vectors may be wrong: "
                    "restart the server, and replace a bundle by renaming a folder to its place"
                )
            if digest == old.digest:
                self._complaints[number] = ""
                if asked:
                    logger.info("%s has not changed", source)
                return
            if source.config.load.cuda_graphs:
                raise ConfigError(
                    "CUDA graphs are captured while nothing else uses the card: restart the server"
                )
            with self._turn():
                if self._closing.is_set():
                    return
                began = time.monotonic()
                models = load_folder(folder, source)
                self._replace(old, models)
        except (MirrorError, OSError) as error:
            self._keep(number, " ".join(str(error).split()), asked=asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, the old models go on
            self._keep(number, where(error), asked=asked)
        else:
            self._models[number], self._complaints[number] = models, ""
            self._metrics.reloads.labels("ok").inc()
            logger.info("%s was loaded again in %.1f s and serves: %s", source,
                        time.monotonic() - began, ", ".join(models.by_name))  # fmt: skip

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Let the workers of a server load one after another, so that requests keep processors."""
        shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if shared is None:  # no other worker
            yield
            return
        with (Path(shared) / "reload.lock").open("wb") as file:  # the end of a worker unlocks it
            while not self._closing.wait(_TURN_SECONDS):
                if lock(file.fileno()):
                    break
            yield

    def _keep(self, number: int, why: str, *, asked: bool) -> None:
        """Log why the models stay as they were; repeat the same reason only when asked."""
        if asked or why != self._complaints[number]:
            models = ", ".join(self._models[number].by_name)
            logger.error("the models stay as they were: %s (%s)", why, models)
        self._complaints[number] = why
        self._metrics.reloads.labels("failed").inc()
