"""Runners of batches: the protocol of all of them, and one for the same graph on several cards."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mirror_rt.tokens.padding import PaddedBatch


class Runner(Protocol):
    """A graph that is ready to run.

    Attributes:
        graph: file of the graph.
        providers: execution providers, the preferred one first.
        outputs: names of the graph's outputs.
        devices: numbers of the cards that it runs on; [None] for the CPU.
    """

    graph: Path
    providers: list[str]
    outputs: list[str]
    devices: list[int | None]

    @property
    def replicas(self) -> Sequence[Runner]:
        """The runners, one for each device."""
        return [self]

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D]; safe to call from several threads.

        Raises:
            BundleError: the graph fails on the batch; the message names the device.
            ClosedError: the runner is closed.
        """

    def close(self) -> None:
        """Free the memory once no run is in flight."""


class Replicas(Runner):
    """The same graph on several devices; a run goes to the one with the fewest runs in flight."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        first = runners[0]
        self.graph, self.providers, self.outputs = first.graph, first.providers, first.outputs
        self.devices = [device for runner in runners for device in runner.devices]
        self._runners = list(runners)
        self._lock = threading.Lock()
        self._running = [0] * len(self._runners)
        self._runs = [0] * len(self._runners)

    @property
    def replicas(self) -> Sequence[Runner]:
        """The runners, one for each device."""
        return self._runners

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D]."""
        with self._lock:
            least = min(range(len(self._runners)), key=lambda i: (self._running[i], self._runs[i]))
            self._running[least] += 1
            self._runs[least] += 1
        try:
            return self._runners[least].run(batch, output)
        finally:
            with self._lock:
                self._running[least] -= 1

    def close(self) -> None:
        """Close every runner."""
        for runner in self._runners:
            runner.close()
