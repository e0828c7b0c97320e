"""A graph that is ready to run batches, whatever runs it: on several cards, or text by text."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.tokens.padding import PaddedBatch


class LoadedGraph(ABC):
    """A graph that is ready to run: token ids in, one of its outputs out.

    Attributes:
        graph: file of the graph.
        providers: execution providers, the preferred one first.
        outputs: names of the graph's outputs.
        devices: numbers of the cards that it runs on; [None] for the CPU.
        why: why these providers run it, in words.
    """

    graph: Path
    providers: list[str]
    outputs: list[str]
    devices: list[int | None]
    why: str = ""

    @property
    def instructions(self) -> str:
        """The instructions of the processor on which vectors may depend."""
        return _core.engine_instruction_sets()[-1]

    @property
    def replicas(self) -> Sequence[LoadedGraph]:
        """The graphs that run, one for each device."""
        return [self]

    @abstractmethod
    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D], or [rows, length, H] for an output of token vectors.

        It is safe to call from several threads. BundleError says that the graph fails on the batch,
        and where; ClosedError that it is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the memory once no run is in flight; every later run raises ClosedError."""


class OneByOne(LoadedGraph):
    """A graph that runs each text by itself, without padding, so that no other changes its vector.

    It is for graphs with one scale for a whole batch.
    """

    def __init__(self, graph: LoadedGraph) -> None:
        self.graph, self.providers, self.outputs = graph.graph, graph.providers, graph.outputs
        self.devices, self.why = graph.devices, graph.why
        self._runner = graph

    @property
    def replicas(self) -> Sequence[LoadedGraph]:
        """The graphs that run, one for each device."""
        return self._runner.replicas

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D], or [rows, length, H] with zeros for the padding."""
        rows, length = batch.attention_mask.shape
        found = [
            self._runner.run(PaddedBatch(*(array[i : i + 1, :used] for array in batch)), output)
            for i, used in enumerate(batch.attention_mask.sum(axis=1))
        ]
        if found[0].ndim == 2:
            return np.concatenate(found)
        padded = np.zeros((rows, length, found[0].shape[2]), found[0].dtype)
        for row, of_tokens in zip(padded, found, strict=True):
            row[: of_tokens.shape[1]] = of_tokens[0]
        return padded

    def close(self) -> None:
        """Close the graph."""
        self._runner.close()


class Replicas(LoadedGraph):
    """The same graph on several devices; a run goes to the one with the fewest runs in flight."""

    def __init__(self, graphs: Sequence[LoadedGraph]) -> None:
        first = graphs[0]
        self.graph, self.providers, self.outputs = first.graph, first.providers, first.outputs
        self.devices = [device for graph in graphs for device in graph.devices]
        self._graphs = list(graphs)
        self._lock = threading.Lock()
        self._running = [0] * len(self._graphs)
        self._runs = [0] * len(self._graphs)

    @property
    def replicas(self) -> Sequence[LoadedGraph]:
        """The graphs that run, one for each device."""
        return self._graphs

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a batch: float32 [rows, D]."""
        with self._lock:
            least = min(range(len(self._graphs)), key=lambda i: (self._running[i], self._runs[i]))
            self._running[least] += 1
            self._runs[least] += 1
        try:
            return self._graphs[least].run(batch, output)
        finally:
            with self._lock:
                self._running[least] -= 1

    def close(self) -> None:
        """Close every graph."""
        for graph in self._graphs:
            graph.close()
