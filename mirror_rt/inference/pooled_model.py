"""What a pipeline needs of a model, whatever runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.tokens.batching import CPU_RUN_COST
from mirror_rt.tokens.padding import PaddedBatch

__all__ = ["PooledModel", "Vectors"]

Vectors = npt.NDArray[np.float32]


class PooledModel(ABC):
    """A model that makes one vector of each row of token ids.

    Args:
        dimension: length D of a vector.
        run_cost: what a run costs besides its tokens, in tokens.
        parallel_runs: how many runs are best in flight at a time: one a device.
    """

    def __init__(
        self, dimension: int, *, run_cost: int = CPU_RUN_COST, parallel_runs: int = 1
    ) -> None:
        self.dimension = dimension
        self.run_cost = run_cost
        self.parallel_runs = parallel_runs

    @abstractmethod
    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: float32 [rows, D]. Safe to call from several threads."""

    def run_exactly(self, batch: PaddedBatch, *, normalize: bool) -> Vectors | None:
        """Run rows that got no finite vector in a higher precision; None where there is none."""
        return None

    def check_token_vectors(self) -> None:
        """Raise ConfigError where the model gives no vector for each token."""
        raise ConfigError("this encoder gives no token vectors")

    def token_vectors(self, batch: PaddedBatch) -> Vectors:
        """Run a padded batch: float32 [rows, length, H], a vector for each token."""
        raise NotImplementedError  # `check_token_vectors` has raised

    def prepare_concurrent_runs(self) -> int:
        """Get ready for runs that begin while another is in flight; return how many are best."""
        return self.parallel_runs
