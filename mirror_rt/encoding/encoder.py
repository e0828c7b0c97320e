"""The encoder of the runtime: a bundle together with what runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.manifest import Layout, Manifest, Variant
from mirror_rt.bundle.onnx_files import read_manifest
from mirror_rt.encoding.batch_encoder import BatchEncoder, Inputs, as_list
from mirror_rt.errors import BundleError, ConfigError, MirrorError, Setting
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.devices import device_name
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.keywords import refuse_unknown, with_visible_options
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.pipeline.prompts import Prompts
from mirror_rt.tokens.chunking import check_prompt
from mirror_rt.tokens.tokenization import TextTokenizer


@with_visible_options(LoadOptions, EncodeOptions)
class Encoder(BatchEncoder):
    """A loaded bundle: `Encoder.load(path).encode(texts)`.

    An encoder is safe to use from several threads at once.
    """

    def __init__(self, folder: Path, manifest: Manifest, options: LoadOptions) -> None:
        self.options = options
        # The model comes first: while it loads, it takes twice its size for a moment.
        self._model = _open(folder, manifest, options)
        tokenizer = TextTokenizer.from_file(
            folder / Layout.tokenizer, max_length=manifest.max_length, pad_id=manifest.pad_id
        )
        _check_prompts(folder, tokenizer, manifest.prompts)
        pipeline = Pipeline(
            tokenizer,
            self._model,
            pad_to=manifest.pad_to,
            normalize=manifest.normalize,
            prompts=Prompts(manifest.prompts, manifest.default_prompt_name),
        )
        super().__init__(pipeline, mask_token=manifest.mask_token)
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def load(cls, path_or_name: str | Path, **keywords: Unpack[LoadKeywords]) -> Encoder:
        """Load a bundle from a folder or by its name: a ready model, or `owner/name` on a hub.

        A folder or repository of plain ONNX files with a tokenizer.json, as sentence-transformers,
        fastembed and transformers.js publish them, is loaded too: what a bundle's manifest says is
        read from the JSON files beside the graph.

        Args:
            path_or_name: a folder written by `mirror-rt export`, the name of one on a hub, or the
                name of a ready model (`all-MiniLM-L6-v2`), which is fetched once.
            **keywords: the fields of `LoadOptions`.

        Raises:
            BundleError: the folder is not a bundle (but a pack of several, for example), or the
                bundle is from a newer version, incomplete or changed; or plain ONNX files do not
                say what must be known.
            ConfigError: a revision was given with a folder, or an option has an unusable value.
            ProviderError: the requested providers are not available, or there is an NVIDIA card
                and CUDA does not start.
            MissingDependencyError: the native engine does not run the bundle with these options,
                and no onnxruntime is installed.
        """
        from mirror_rt.bundle.pack_index import (
            refuse_pack,  # imported here: it takes a tenth of the time of importing mirror_rt
        )

        refuse_pack(Path(path_or_name))
        refuse_unknown("Encoder.load", keywords, LoadKeywords.__annotations__)
        options = LoadOptions(**keywords)
        try:
            folder = options.find(path_or_name)
        except MirrorError as error:
            # Its message says all; six more entries of the traceback would hide it from a beginner.
            raise error.with_traceback(None) from error.__cause__
        refuse_pack(folder)
        return cls(folder, read_manifest(folder, pooling=options.pooling), options)

    @property
    def providers(self) -> list[str]:
        """The execution providers in use, the first preferred; `["native"]` for the engine."""
        return self._model.runner.providers

    @property
    def provider_reason(self) -> str:
        """Why these providers run the bundle, and why others do not, in words."""
        return self._model.runner.why

    @property
    def variant(self) -> Variant:
        """The variant of the bundle that was chosen, with the path of its graph."""
        return self._model.variant

    @property
    def load_options(self) -> LoadKeywords:
        """Keyword arguments that load this encoder again: `Encoder.load(encoder.folder, **these)`.

        They name no revision, because the folder is a local one even if it came from a hub.
        """
        return replace(self.options, revision=None, offline=False).keywords()

    @property
    def devices(self) -> list[str]:
        """The devices that the model runs on: `["cpu"]`, or `["cuda:0", "cuda:1"]` and so on."""
        return [device_name(device) for device in self._model.runner.devices]

    def warmup(self, *, lengths: Sequence[int] = (16, 128, 512), batch_size: int = 32) -> None:
        """Run the model once for each length, alone and in a full batch, on every device.

        In its first runs a session allocates memory and selects kernels, so they are slow: a
        service should warm up before it reports that it is ready.

        Args:
            lengths: lengths of the texts in tokens; those above `max_length` count as `max_length`.
            batch_size: as in `encode`; a full batch fills the token budget that it stands for.
        """
        longest = self.pipeline.pad_to or self.max_length
        shapes = [
            (rows, length)
            for length in sorted({min(length, longest) for length in lengths})
            for rows in sorted({1, max(1, 64 * batch_size // length)})
        ]
        self._model.warmup(shapes, pad_id=self.pipeline.tokenizer.pad_id)

    @property
    def has_token_vectors(self) -> bool:
        """Tell whether the graph also gives a vector for each token."""
        return self._model.has_token_vectors

    def encode_tokens(
        self, inputs: Inputs, **options: Unpack[EncodeKeywords]
    ) -> list[npt.NDArray[np.float32]]:
        """Encode texts to one vector for each token, the model's output before pooling.

        Args:
            inputs: one string, any iterable of strings, or an iterable of lists of token ids.
            **options: those of `encode`: `batch_size`, `prompt_name`, `prompt` and `on_too_long`
                (`truncate` or `error`); the others have no effect.

        Returns:
            One array for each text: float32 [tokens, H], special tokens included.

        Raises:
            InvalidTextError: a text cannot be encoded.
            ConfigError: an option has an unusable value, or the graph gives no token vectors.
        """
        pipeline = self.pipeline
        plan = pipeline.plan_for_tokens(**options)
        texts = as_list(inputs)
        tokens = pipeline.tokenize(texts, plan).tokens
        vectors = [np.empty((0, 0), np.float32)] * len(tokens)
        for batch in pipeline.batches(tokens, plan):
            found, _ = pipeline.run_token_vectors(pipeline.pad(tokens, batch))
            for row, of_tokens in zip(batch.tolist(), found, strict=True):
                vectors[row] = of_tokens
        return vectors

    def close(self) -> None:
        """Free the model once no run is in flight; encoding raises ClosedError from then on."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], Encoder], tuple[()]]:
        """Pickle the folder and the options: unpickling loads the bundle from the folder again."""
        return functools.partial(type(self).load, self.folder.absolute(), **self.load_options), ()

    def __repr__(self) -> str:
        return f"Encoder({str(self.folder)!r}, dimension={self.dimension})"


def _open(folder: Path, manifest: Manifest, options: LoadOptions) -> BundleModel:
    """Open the graph of a bundle, or of plain ONNX files."""
    if manifest.format == "mirror_rt bundle":
        if options.pooling != "auto":
            raise ConfigError(
                Setting("pooling", options.pooling),
                f": {folder} is a bundle, its pooling is in the graph",
            )
        return BundleModel(folder, manifest, options)
    from mirror_rt.inference.plain_model import PlainModel

    return PlainModel(folder, manifest, options)


def _check_prompts(folder: Path, tokenizer: TextTokenizer, prompts: Mapping[str, str]) -> None:
    """Raise BundleError if a prompt of the manifest leaves no room for text."""
    for name, prompt in prompts.items():
        try:
            check_prompt(tokenizer, prompt)
        except ConfigError as error:
            raise BundleError(f"{folder / Layout.manifest}, prompt {name!r}: {error}") from None
