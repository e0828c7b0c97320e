"""A bundle's graph in onnxruntime, and its fp32 graph for rows without a finite vector."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.plain_manifest import TOKEN_OUTPUTS
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.inference.devices import RUNS_IN_FLIGHT, on_card
from mirror_rt.inference.graph_files import BUNDLE_OUTPUTS
from mirror_rt.inference.graph_loading import exact_variant, open_exact, open_variant
from mirror_rt.inference.identity import model_identity
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.inference.session import GraphSession
from mirror_rt.inference.static_runner import StaticRunner
from mirror_rt.tokens.batching import CPU_RUN_COST, GPU_RUN_COST
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens

if TYPE_CHECKING:
    from mirror_rt.inference.vector_cache import VectorCache

# The name of the graph's output, by whether its vectors have unit length.
_OUTPUT = dict(zip((True, False), BUNDLE_OUTPUTS, strict=True))

logger = logging.getLogger("mirror_rt")


class BundleModel(PooledModel):
    """The model of a bundle, opened on its devices; errors are those of `open_variant`."""

    def __init__(self, described: ModelDescription, options: LoadOptions) -> None:
        self.runner, self.variant = open_variant(described, options)
        on_cpu = not on_card(self.runner.providers[0])
        super().__init__(
            described.bundle.dimension,
            run_cost=CPU_RUN_COST if on_cpu else GPU_RUN_COST,
            parallel_runs=len(self.runner.devices) * (1 if on_cpu else RUNS_IN_FLIGHT),
        )
        # The graph's outputs with the vectors of texts as pooled, and with those of tokens.
        self._text_output, self._token_output = _OUTPUT[False], TOKEN_OUTPUTS[0]
        self.looks_up = isinstance(self.runner, StaticRunner)
        self._described, self._options = described, options
        # If an operator has several threads, a second run can compute while the first one waits
        # for its slowest thread or for its result to be returned.
        self._pays_to_overlap = on_cpu and options.resolved_threads > 1
        self._exact: LoadedGraph | None = None  # opened when a row is not finite
        self._opening_exact = threading.Lock()

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: float32 [rows, D]."""
        vectors = self.runner.run(batch, _OUTPUT[normalize])
        if vectors.shape != (len(batch.input_ids), self.dimension):
            raise BundleError(
                f"{self.runner.graph} gave vectors of the shape {vectors.shape} for "
                f"{len(batch.input_ids)} texts, its manifest says {self.dimension} dimensions"
            )
        return vectors

    def run_rows(self, tokens: RaggedTokens, *, normalize: bool) -> Vectors | None:
        """Run rows of any length in a static encoder: float32 [n, D]; None in a graph."""
        if isinstance(self.runner, StaticRunner):
            return self.runner.run_rows(tokens, normalize=normalize)
        return None

    def run_exactly(self, batch: PaddedBatch, *, normalize: bool) -> Vectors | None:
        """Run rows in fp32; return None if the bundle has no other graph that is fp32."""
        than, provider = self.variant, self.runner.providers[0]
        described = self._described
        exact = exact_variant(described.folder, described.bundle, than, provider)
        if exact is None:
            return None
        with self._opening_exact:
            if self._exact is None:
                logger.warning(
                    "%s gave a vector that is not finite: such texts run again in fp32 (said once)",
                    self.runner.graph,
                )
                self._exact = open_exact(described, exact, self.runner, self._options)
        return self._exact.run(batch, _OUTPUT[normalize])

    @property
    def has_token_vectors(self) -> bool:
        """Tell whether the graph also gives a vector for each token."""
        return self._token_output in self.runner.outputs

    def check_token_vectors(self) -> None:
        """Raise ConfigError if the graph gives no token vectors."""
        if not self.has_token_vectors:
            raise ConfigError(f"{self.runner.graph.name} gives no token vectors")

    def token_vectors(self, batch: PaddedBatch) -> Vectors:
        """Run a padded batch: float32 [rows, length, H], one vector for each token."""
        return self.runner.run(batch, self._token_output)

    def prepare_concurrent_runs(self) -> int:
        """Prepare for runs that begin while another is in flight.

        Returns:
            The best number of concurrent runs: two per card, or on a CPU with several threads.
        """
        for runner in self.runner.replicas:
            if isinstance(runner, GraphSession):
                runner.prepare_concurrent_runs()
        return max(self.parallel_runs, 2) if self._pays_to_overlap else self.parallel_runs

    def open_cache(self, dimension: int | None = None) -> VectorCache | None:
        """Open the cache that the options name, of vectors or of a head's results."""
        variant, options = self.variant, self._options
        if options.cache is None or isinstance(self.runner, StaticRunner):
            return None  # a lookup takes less time than to find its result
        from mirror_rt.inference.vector_cache import VectorCache  # SQLite, which few need

        identity = model_identity(
            digest_of(self._described.folder, verified=options.verify),
            options,
            self.runner.providers,
            variant=[variant.file, variant.precision, variant.target],
            instructions=self.runner.instructions,
        )
        return VectorCache(
            Path(options.cache),
            most_bytes=options.cache_bytes,
            model=json.dumps(identity, sort_keys=True),
            dimension=dimension or self.dimension,
        )

    def warmup(self, shapes: Iterable[tuple[int, int]], *, pad_id: int) -> None:
        """Run batches of the shapes (rows, length), filled with `pad_id`, on every device."""
        for shape in shapes:
            ids = np.full(shape, pad_id, dtype=np.int64)
            batch = PaddedBatch(ids, np.ones_like(ids), np.zeros_like(ids))
            for runner in self.runner.replicas:
                runner.run(batch, self._text_output)

    def close(self) -> None:
        """Free the memory once no run is in flight; every later run raises ClosedError."""
        self.runner.close()
        with self._opening_exact:
            if self._exact is not None:
                self._exact.close()
