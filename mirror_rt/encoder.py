"""The encoder of the run time: a bundle and its onnxruntime session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.batching import CPU_RUN_COST, GPU_RUN_COST
from mirror_rt.encoding import BatchEncoder, Vectors
from mirror_rt.errors import BundleError
from mirror_rt.hub import resolve_bundle
from mirror_rt.manifest import Layout, Manifest
from mirror_rt.pack import refuse_pack
from mirror_rt.prompts import Prompts
from mirror_rt.session import Providers, make_session, onnxruntime_errors
from mirror_rt.tokenization import TextTokenizer, why_invalid
from mirror_rt.tokens import PaddedBatch, RaggedTokens

__all__ = ["Encoder"]


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
        providers: Providers = "auto",
        threads: int | None = None,
    ) -> None:
        self._graph = _loadable(folder, manifest, manifest.variant(variant).file)
        # First the session: loading one takes twice its size for a moment.
        self._session = make_session(self._graph, providers=providers, threads=threads)
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
            run_cost=CPU_RUN_COST if self.providers[0].startswith("CPU") else GPU_RUN_COST,
        )
        self.folder = folder
        self.manifest = manifest
        self._input_names = [node.name for node in self._session.get_inputs()]
        self._check_graph()

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
        threads: int | None = None,
    ) -> Encoder:
        """Load a bundle from a folder, or from a model hub by name (`owner/name`).

        Args:
            path_or_name: a folder written by `mirror-rt export`, or the name of one on a hub.
            variant: which graph of the bundle (`fp32`, `fp16`, `int8`, `fp16-cuda` ...); None for
                `fp32`, or the first where the bundle has no `fp32`.
            revision: branch, tag or commit on the hub.
            offline: take a hub name from the local cache alone.
            verify: compare every file that it needs with the hash in the manifest first.
            providers: `"auto"` or a list of onnxruntime execution providers.
            threads: processors for one operator; None for all that this process may use.

        Raises:
            BundleError: not a bundle (a pack of several, for example), from a newer version,
                incomplete or changed.
            ConfigError: a revision was given with a folder, or `threads` is out of range.
            ProviderError: the providers cannot be had.
            MissingDependencyError: no onnxruntime is installed.
        """
        refuse_pack(Path(path_or_name))
        folder = resolve_bundle(
            path_or_name, revision=revision, offline=offline, variants=[variant]
        )
        refuse_pack(folder)
        manifest = Manifest.read(folder)
        if verify:
            manifest.verify(folder, manifest.files_for([manifest.variant(variant)]))
        return cls(folder, manifest, variant=variant, providers=providers, threads=threads)

    @property
    def providers(self) -> list[str]:
        """The execution providers in use, the first preferred."""
        return list(self._session.get_providers())

    @property
    def pad_to(self) -> int | None:
        """Tokens that every text is padded to; None for as few as a batch allows."""
        return self.manifest.pad_to

    def prepare(self, texts: Sequence[Any]) -> tuple[RaggedTokens, list[tuple[int, str]]]:
        """Tokenise for `run_tokens`.

        Args:
            texts: n values that ought to be strings.

        Returns:
            The token ids of each, none for an unusable one; and (position, reason) of those.
        """
        reasons = [why_invalid(text) for text in texts]
        good = [i for i, reason in enumerate(reasons) if reason is None]
        tokens = self._tokenize([texts[i] for i in good])
        lengths = np.zeros(len(texts), dtype=np.int64)
        lengths[good] = tokens.lengths
        unusable = [
            (i, reason or "it has no tokens")
            for i, (reason, length) in enumerate(zip(reasons, lengths, strict=True))
            if length == 0
        ]
        return RaggedTokens(tokens.ids, np.concatenate([[0], np.cumsum(lengths)])), unusable

    def run_tokens(self, tokens: RaggedTokens, *, normalize: bool) -> Vectors:
        """Run n texts of at least one token as one batch.

        Returns:
            float32 [n, D]; NaN in the rows of texts for which the model gives no finite vector.
        """
        rows = np.arange(len(tokens))
        batch = tokens.pad(rows, pad_id=self._tokenizer.pad_id, length=self._pad_to)
        return self._run_batch(batch, normalize=normalize)

    def _run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        output = "sentence_embedding" if normalize else "pooled_embedding"
        arrays = batch._asdict()
        feeds = {name: arrays[name] for name in self._input_names}
        try:
            vectors = np.asarray(self._session.run([output], feeds)[0])
        except onnxruntime_errors() as error:
            rows, length = batch.input_ids.shape
            raise BundleError(
                f"{self._graph} failed on {rows} texts of {length} tokens: {error}"
            ) from error
        if vectors.shape != (len(batch.input_ids), self.dimension):
            raise BundleError(
                f"{self._graph} gave {vectors.shape[-1]} dimensions, its manifest "
                f"says {self.dimension}"
            )
        return vectors

    def _check_graph(self) -> None:
        unknown = set(self._input_names) - set(PaddedBatch._fields)
        outputs = {node.name for node in self._session.get_outputs()}
        missing = {"sentence_embedding", "pooled_embedding"} - outputs
        if unknown or missing:
            raise BundleError(
                f"{self._graph} is not a pooled encoder graph: "
                f"unknown inputs {sorted(unknown)}, missing outputs {sorted(missing)}"
            )

    def __repr__(self) -> str:
        return f"Encoder({str(self.folder)!r}, dimension={self.dimension})"


def _loadable(folder: Path, manifest: Manifest, graph: str) -> Path:
    """Path of a graph, where possible of the one that leaves its weights in the file.

    Not where the file was changed, whose weights are elsewhere then; and not behind a symbolic
    link, which a model hub's cache is made of and onnxruntime refuses for weights.
    """
    path, mapped = folder / graph, folder / Layout.mapped(graph)
    record = manifest.files.get(graph)
    if not mapped.is_file() or not path.is_file() or path.is_symlink():
        return path
    same = record is None or record.bytes == path.stat().st_size
    return mapped if same else path
