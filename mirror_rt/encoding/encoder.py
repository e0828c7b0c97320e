"""The encoder of the runtime: a bundle together with its engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.manifest import Layout
from mirror_rt.encoding.batch_encoder import BatchEncoder, Inputs, as_list
from mirror_rt.encoding.loaded_bundle import LoadedBundle, open_model
from mirror_rt.encoding.token_vectors import vectors_of_rows
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.inference.static_runner import StaticRunner
from mirror_rt.keywords import with_visible_options
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.pipeline.prompts import Prompts
from mirror_rt.tokens.chunking import check_prompt
from mirror_rt.tokens.tokenization import TextTokenizer


@with_visible_options(LoadOptions, EncodeOptions)
class Encoder(LoadedBundle, BatchEncoder):
    """A loaded bundle: `Encoder.load(path).encode(texts)`.

    An encoder is safe to use from several threads at once.
    """

    def __init__(self, description: ModelDescription, options: LoadOptions) -> None:
        LoadedBundle.__init__(self, description, options)
        folder, manifest = self.folder, self.manifest
        # The model comes first: while it loads, it takes twice its size for a moment.
        self._model = open_model(self.description, options)
        tokenizer = TextTokenizer.from_file(
            folder / manifest.tokenizer,
            max_length=manifest.max_length,
            pad_id=manifest.pad_id,
            settings=description.tokenizer,
        )
        if isinstance(runner := self._model.runner, StaticRunner):
            tokenizer.leave_out_special(unknown=manifest.pooling != "mean")
            tokenizer.check_ids(runner.tokens)
        _check_prompts(folder, tokenizer, manifest.prompts)
        pipeline = Pipeline(
            tokenizer,
            self._model,
            pad_to=manifest.pad_to,
            normalize=manifest.normalize,
            prompts=Prompts(manifest.prompts, manifest.default_prompt_name),
            cache=self._model.open_cache(),
        )
        BatchEncoder.__init__(self, pipeline, mask_token=manifest.mask_token)

    @classmethod
    def load(cls, path_or_name: str | Path, **keywords: Unpack[LoadKeywords]) -> Encoder:
        """Load a bundle from a folder or by its name: a ready model, or `owner/name` on a hub.

        A folder or repository of plain ONNX files with a tokenizer.json, as sentence-transformers,
        fastembed and transformers.js publish them, is loaded too: in place of a bundle's manifest,
        the JSON files beside the graph are read.

        Args:
            path_or_name: a folder written by `mirror-rt export`, the name of one on a hub, or the
                name of a ready model (`all-MiniLM-L6-v2`), which is fetched once.
            **keywords: the fields of `LoadOptions`.

        Raises:
            BundleError: the folder is not a bundle (but a pack of several, for example), or the
                bundle is from a newer version, incomplete or changed; or plain ONNX files lack a
                declaration that is needed.
            ConfigError: a revision was given with a folder, or an option has an unusable value.
            ProviderError: the requested providers are not available, or there is an NVIDIA card
                and CUDA does not start.
            MissingDependencyError: the native engine does not run the bundle with these options,
                and no onnxruntime is installed.
        """
        return cls._load(path_or_name, keywords)

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
        return vectors_of_rows(pipeline, tokens, plan)

    def __repr__(self) -> str:
        return f"Encoder({str(self.folder)!r}, dimension={self.dimension})"


def _check_prompts(folder: Path, tokenizer: TextTokenizer, prompts: Mapping[str, str]) -> None:
    """Raise BundleError if a prompt of the manifest leaves no room for text."""
    for name, prompt in prompts.items():
        try:
            check_prompt(tokenizer, prompt)
        except ConfigError as error:
            raise BundleError(f"{folder / Layout.manifest}, prompt {name!r}: {error}") from None
