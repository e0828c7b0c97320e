"""The interface of a model that a pipeline needs, independent of the engine that runs the model."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.tokens.batching import CPU_RUN_COST
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens

Vectors = npt.NDArray[np.float32]


class PooledModel(ABC):
    """A model that makes one vector from each row of token ids.

    Args:
        dimension: length D of a vector.
        run_cost: fixed cost of a run, expressed in tokens.
        parallel_runs: best number of runs in flight: two per card, one on a CPU.

    Attributes:
        looks_up: whether it only looks up vectors, which takes next to no time.
    """

    looks_up = False

    def __init__(
        self, dimension: int, *, run_cost: int = CPU_RUN_COST, parallel_runs: int = 1
    ) -> None:
        self.dimension = dimension
        self.run_cost = run_cost
        self.parallel_runs = parallel_runs

    @abstractmethod
    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: float32 [rows, D]. Safe to call from several threads."""

    def run_rows(self, tokens: RaggedTokens, *, normalize: bool) -> Vectors | None:
        """Run rows of any length without padding: float32 [n, D]; None if it takes batches."""
        return None

    def run_exactly(self, batch: PaddedBatch, *, normalize: bool) -> Vectors | None:
        """Run rows without a finite vector in a higher precision; None if there is none."""
        return None

    def check_token_vectors(self) -> None:
        """Raise ConfigError if the model gives no token vectors."""
        raise ConfigError("this encoder gives no token vectors")

    def token_vectors(self, batch: PaddedBatch) -> Vectors:
        """Run a padded batch: float32 [rows, length, H], one vector for each token."""
        raise NotImplementedError  # `check_token_vectors` has raised

    def prepare_concurrent_runs(self) -> int:
        """Prepare for concurrent runs; return the best number of runs in flight."""
        return self.parallel_runs
