"""The encoder of the run time: a bundle and its onnxruntime session."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.hub import resolve_bundle
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.encoding.batch_encoder import BatchEncoder, Inputs, Vectors, as_list
from mirror_rt.encoding.options import EncodeKeywords
from mirror_rt.encoding.prompts import Prompts
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.inference.devices import device_name
from mirror_rt.inference.graph_loading import exact_variant, open_exact, open_variant
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.inference.providers import CPU
from mirror_rt.inference.replicas import Runner
from mirror_rt.inference.session import GraphSession
from mirror_rt.tokens.batching import CPU_RUN_COST, GPU_RUN_COST, plan_batches
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.tokens.tokenization import TextTokenizer

__all__ = ["Encoder"]

_TOKEN_VECTORS = "last_hidden_state"

logger = logging.getLogger("mirror_rt")


class Encoder(BatchEncoder):
    """A bundle, loaded: `Encoder.load(path).encode(texts)`.

    Safe to use from several threads at once.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        options: LoadOptions,
    ) -> None:
        self.options = options
        # First the session: loading one takes twice its size for a moment.
        self._session, self.variant = open_variant(folder, manifest, options)
        tokenizer = TextTokenizer.from_file(
            folder / Layout.tokenizer, max_length=manifest.max_length, pad_id=manifest.pad_id
        )
        super().__init__(
            tokenizer,
            dimension=manifest.dimension,
            pad_to=manifest.pad_to,
            mask_token=manifest.mask_token,
            normalize=manifest.normalize,
            prompts=Prompts(manifest.prompts, manifest.default_prompt_name),
            run_cost=CPU_RUN_COST if self.providers[0] == CPU else GPU_RUN_COST,
            parallel_runs=len(self._session.devices),
        )
        self.folder = folder
        self.manifest = manifest
        self._exact: Runner | None = None  # opened when a row is not finite
        self._opening_exact = threading.Lock()

    @classmethod
    def load(
        cls,
        path_or_name: str | Path,
        **keywords: Unpack[LoadKeywords],
    ) -> Encoder:
        """Load a bundle from a folder, or from a model hub by name (`owner/name`).

        Args:
            path_or_name: a folder written by `mirror-rt export`, or the name of one on a hub.
            **keywords: the fields of `LoadOptions`.

        Raises:
            BundleError: not a bundle (a pack of several, for example), from a newer version,
                incomplete or changed.
            ConfigError: a revision was given with a folder, or an option has an unusable value.
            ProviderError: the providers cannot be had, or there is an NVIDIA card and CUDA does
                not start.
            MissingDependencyError: no onnxruntime is installed.
        """
        from mirror_rt.languages.pack_index import (
            refuse_pack,  # a tenth of the time of importing mirror_rt
        )

        refuse_pack(Path(path_or_name))
        options = LoadOptions(**keywords)
        folder = resolve_bundle(
            path_or_name,
            revision=options.revision,
            offline=options.offline,
            variants=[options.variant],
        )
        refuse_pack(folder)
        return cls(folder, Manifest.read(folder), options)

    @property
    def providers(self) -> list[str]:
        """The execution providers in use, the first preferred."""
        return self._session.providers

    def prepare_concurrent_runs(self) -> int:
        """Get ready for runs that begin while another is in flight.

        Returns:
            How many are best at a time: one a device, and two on a CPU, where one computes while
            the other waits for its slowest thread or is given back.
        """
        for runner in self._session.replicas:
            if isinstance(runner, GraphSession):
                runner.prepare_concurrent_runs()
        on_cpu = self.providers[0] == CPU and self.options.resolved_threads > 1
        return max(self.parallel_runs, 2) if on_cpu else self.parallel_runs

    @property
    def load_options(self) -> LoadKeywords:
        """Keyword arguments that load the same again: `Encoder.load(encoder.folder, **these)`.

        They name no revision of a hub, since the folder is a local one wherever it came from.
        """
        return replace(self.options, revision=None, offline=False).keywords()

    @property
    def devices(self) -> list[str]:
        """Where the model runs: `["cpu"]`, or `["cuda:0", "cuda:1"]` and so on."""
        return [device_name(device) for device in self._session.devices]

    def warmup(self, *, lengths: Sequence[int] = (16, 128, 512), batch_size: int = 32) -> None:
        """Run the model once for each length, alone and in a full batch, on every device.

        The first runs of a session take memory and make choices; a service does it before it says
        that it is ready.

        Args:
            lengths: in tokens; those above `max_length` count as `max_length`.
            batch_size: as in `encode`, whose budget of tokens a batch fills.
        """
        for length in sorted({min(length, self.pad_to or self.max_length) for length in lengths}):
            for rows in sorted({1, max(1, 64 * batch_size // length)}):
                ids = np.full((rows, length), self._tokenizer.pad_id, dtype=np.int64)
                batch = PaddedBatch(ids, np.ones_like(ids), np.zeros_like(ids))
                for runner in self._session.replicas:
                    runner.run(batch, "pooled_embedding")

    @property
    def has_token_vectors(self) -> bool:
        """Whether the graph gives a vector for each token, too."""
        return _TOKEN_VECTORS in self._session.outputs

    def encode_tokens(
        self, inputs: Inputs, **options: Unpack[EncodeKeywords]
    ) -> list[npt.NDArray[np.float32]]:
        """Encode texts to a vector for each token: those that pooling would make one of.

        Args:
            inputs: one string, any iterable of strings, or of lists of token ids.
            **options: of `encode`: `batch_size`, `prompt_name`, `prompt`, `on_too_long`
                (`truncate` or `error`); the others change nothing.

        Returns:
            float32 [tokens, H] for each text, special tokens included.

        Raises:
            InvalidTextError: a text cannot be encoded.
            ConfigError: an option has an unusable value, or the graph gives no token vectors.
        """
        job = self.job(options)
        if not self.has_token_vectors:
            raise ConfigError(f"{self._session.graph.name} gives no token vectors")
        if job.on_too_long == "chunk":
            raise ConfigError("on_too_long='chunk' joins chunks to one vector: cut or refuse")
        tokens = self.prepare([inputs] if isinstance(inputs, str) else as_list(inputs), job).tokens
        vectors = [np.empty((0, 0), np.float32)] * len(tokens)
        for batch in plan_batches(
            tokens.lengths, token_budget=job.token_budget, run_cost=self.run_cost
        ):
            padded = tokens.pad(batch, pad_id=self._tokenizer.pad_id, length=self.pad_to)
            output = self._session.run(padded, _TOKEN_VECTORS)
            for row, of_tokens in zip(batch.tolist(), output, strict=True):
                vectors[row] = of_tokens[: tokens.lengths[row]].astype(np.float32)
        return vectors

    def close(self) -> None:
        """Free the model, once no run is in flight; encoding is a ClosedError from then on."""
        self._session.close()
        with self._opening_exact:
            if self._exact is not None:
                self._exact.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], Encoder], tuple[()]]:
        """Pickled as its folder and options: who unpickles it loads the bundle from there."""
        return functools.partial(type(self).load, self.folder.absolute(), **self.load_options), ()

    def _run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run the model; rows that are not finite again in fp32, NaN where that fails too."""
        output = "sentence_embedding" if normalize else "pooled_embedding"
        vectors = self._session.run(batch, output)
        if vectors.shape != (len(batch.input_ids), self.dimension):
            raise BundleError(
                f"{self._session.graph} gave {vectors.shape[-1]} dimensions, its manifest "
                f"says {self.dimension}"
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            rows = np.flatnonzero(~finite)
            vectors[rows] = self._run_exactly(PaddedBatch(*(a[rows] for a in batch)), output)
        return vectors

    def _run_exactly(self, batch: PaddedBatch, output: str) -> Vectors:
        rows = len(batch.input_ids)
        exact = exact_variant(self.folder, self.manifest, self.variant, self.providers[0])
        if exact is None:
            return np.full((rows, self.dimension), np.nan, dtype=np.float32)
        with self._opening_exact:
            if self._exact is None:
                logger.warning(
                    "%s gave a vector that is not finite: such texts run again in fp32 (said once)",
                    self._session.graph,
                )
                self._exact = open_exact(
                    self.folder, self.manifest, exact, self._session, self.options
                )
        vectors = self._exact.run(batch, output)
        vectors[~np.isfinite(vectors).all(axis=1)] = np.nan
        return vectors

    def __repr__(self) -> str:
        return f"Encoder({str(self.folder)!r}, dimension={self.dimension})"
