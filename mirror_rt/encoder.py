"""The encoder of the run time: a bundle and its onnxruntime session."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from mirror_rt.batching import CPU_RUN_COST, GPU_RUN_COST, plan_batches
from mirror_rt.devices import Devices, device_name
from mirror_rt.encoding import BatchEncoder, Inputs, Vectors, as_list
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.hub import resolve_bundle
from mirror_rt.manifest import Layout, Manifest
from mirror_rt.opening import exact_variant, open_exact, open_variant
from mirror_rt.options import EncodeOptions, Job
from mirror_rt.prompts import Prompts
from mirror_rt.providers import CPU, Providers
from mirror_rt.replicas import Runner
from mirror_rt.session import GraphSession
from mirror_rt.session_config import SessionConfig, Spinning
from mirror_rt.tokenization import TextTokenizer
from mirror_rt.tokens import PaddedBatch, RaggedTokens

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
        *,
        variant: str | None = None,
        verify: bool = False,
        providers: Providers = "auto",
        allow_fallback: bool = False,
        threads: int | None = None,
        spinning: Spinning | None = None,
        devices: Devices = None,
        cuda_graphs: bool = False,
        provider_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = SessionConfig(
            providers,
            allow_fallback,
            threads,
            spinning,
            devices,
            cuda_graphs,
            dict(provider_options or {}),
        )
        # First the session: loading one takes twice its size for a moment.
        self._session, self.variant = open_variant(
            folder, manifest, variant, self._config, verify=verify
        )
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
        self._asked_variant = variant
        self._verify = verify
        self._exact: Runner | None = None  # opened when a row is not finite
        self._opening_exact = threading.Lock()

    @classmethod
    def load(
        cls,
        path_or_name: str | Path,
        *,
        variant: str | None = None,
        revision: str | None = None,
        offline: bool = False,
        verify: bool = True,
        providers: Providers = "auto",
        allow_fallback: bool = False,
        threads: int | None = None,
        spinning: Spinning | None = None,
        devices: Devices = None,
        cuda_graphs: bool = False,
        provider_options: Mapping[str, Any] | None = None,
    ) -> Encoder:
        """Load a bundle from a folder, or from a model hub by name (`owner/name`).

        Args:
            path_or_name: a folder written by `mirror-rt export`, or the name of one on a hub.
            variant: which graph of the bundle (`fp32`, `fp16`, `int8`, `fp16-cuda` ...); None for
                `fp32` on the CPU (the first where the bundle has no `fp32`), and under CUDA for
                the fastest it has: `fp16-cuda`, `fp16`, `fp32-cuda`, `fp32`.
            revision: branch, tag or commit on the hub.
            offline: take a hub name from the local cache alone.
            verify: compare every file that it needs with the hash in the manifest first.
            providers: `"auto"` (CUDA where onnxruntime has it and there is a card, else the CPU),
                `"cpu"`, `"cuda"`, `"tensorrt"`, or a list of onnxruntime execution providers.
            allow_fallback: run on the CPU, with a warning, where the provider that was asked for
                cannot be had.
            threads: processors for one operator; None for all that this process may use, by its
                affinity mask and the CPU quota of its cgroups.
            spinning: whether threads without work spin (faster to wake, and busy): `"off"`,
                `"run"` (while a run is in flight) or `"always"` (and after it). None for `"run"`,
                and for `"off"` under a CPU quota.
            devices: numbers of NVIDIA cards, or `"all"`: the model is loaded on each, and batches
                run on those that are free. None for the first.
            cuda_graphs: run batches of up to 8 texts and 128 tokens as CUDA graphs, padded to the
                next of 16 shapes; they are captured here, before anything else may run on the
                card.
            provider_options: of the first provider, in onnxruntime's names:
                `{"gpu_mem_limit": 4 << 30}` for CUDA, `{"trt_engine_cache_path": "engines"}`
                for TensorRT.

        Raises:
            BundleError: not a bundle (a pack of several, for example), from a newer version,
                incomplete or changed.
            ConfigError: a revision was given with a folder, or an option has an unusable value.
            ProviderError: the providers cannot be had, or there is an NVIDIA card and CUDA does
                not start.
            MissingDependencyError: no onnxruntime is installed.
        """
        from mirror_rt.pack import refuse_pack  # a tenth of the time of importing mirror_rt

        refuse_pack(Path(path_or_name))
        folder = resolve_bundle(
            path_or_name, revision=revision, offline=offline, variants=[variant]
        )
        refuse_pack(folder)
        manifest = Manifest.read(folder)
        return cls(
            folder,
            manifest,
            variant=variant,
            verify=verify,
            providers=providers,
            allow_fallback=allow_fallback,
            threads=threads,
            spinning=spinning,
            devices=devices,
            cuda_graphs=cuda_graphs,
            provider_options=provider_options,
        )

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
        on_cpu = self.providers[0] == CPU and self._config.resolved_threads > 1
        return max(self.parallel_runs, 2) if on_cpu else self.parallel_runs

    @property
    def load_options(self) -> dict[str, Any]:
        """What `load` was told: `Encoder.load(encoder.folder, **load_options)` is its like."""
        return {
            "variant": self._asked_variant,
            "verify": self._verify,
            "providers": self._config.providers,
            "allow_fallback": self._config.allow_fallback,
            "threads": self._config.threads,
            "spinning": self._config.spinning,
            "devices": self._config.devices,
            "cuda_graphs": self._config.cuda_graphs,
            "provider_options": dict(self._config.provider_options),
        }

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
        self, inputs: Inputs, **options: Unpack[EncodeOptions]
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
        job = self.token_job(self.job(options))
        tokens = self.prepare([inputs] if isinstance(inputs, str) else as_list(inputs), job).tokens
        vectors = [np.empty((0, 0), np.float32)] * len(tokens)
        for batch in plan_batches(
            tokens.lengths, token_budget=job.token_budget, run_cost=self.run_cost
        ):
            for row, found in zip(
                batch.tolist(), self.run_token_vectors(tokens.take(batch)), strict=True
            ):
                vectors[row] = found
        return vectors

    def token_job(self, job: Job) -> Job:
        """Check the options of a call for token vectors; ConfigError where they cannot be had."""
        if not self.has_token_vectors:
            raise ConfigError(f"{self._session.graph.name} gives no token vectors")
        if job.on_too_long == "chunk":
            raise ConfigError("on_too_long='chunk' joins chunks to one vector: cut or refuse")
        return job

    def run_token_vectors(self, tokens: RaggedTokens) -> list[Vectors]:
        """Run rows as one batch: float32 [tokens, H] of each row, special tokens included."""
        rows = np.arange(len(tokens))
        padded = tokens.pad(rows, pad_id=self._tokenizer.pad_id, length=self.pad_to)
        output = self._session.run(padded, _TOKEN_VECTORS)
        # Copies, so that the vectors of a row do not keep those of the whole batch.
        return [
            of_tokens[:length].astype(np.float32)
            for of_tokens, length in zip(output, tokens.lengths.tolist(), strict=True)
        ]

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
        folder = self.folder.absolute()
        return functools.partial(type(self).load, folder, **self.load_options), ()

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
                    self.folder,
                    self.manifest,
                    exact,
                    self._session,
                    self._config,
                    verify=self._verify,
                )
        vectors = self._exact.run(batch, output)
        vectors[~np.isfinite(vectors).all(axis=1)] = np.nan
        return vectors

    def __repr__(self) -> str:
        return f"Encoder({str(self.folder)!r}, dimension={self.dimension})"
