"""Offer what sentence-transformers tells of a model, and lets a caller set."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mirror_rt.compat.arguments import Device
from mirror_rt.compat.util import SimilarityFunction, function_named
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError, require
from mirror_rt.pipeline.prompts import Prompts

logger = logging.getLogger("mirror_rt")


class ModelProperties:
    """The properties of a model by the names of `sentence_transformers.SentenceTransformer`."""

    SUPPORTED_SIMILARITY_FN_NAMES = tuple(SimilarityFunction.possible_values())

    encoder: Encoder
    truncate_dim: int | None
    _similarity = SimilarityFunction.COSINE

    def get_embedding_dimension(self) -> int:
        """Return the length D of an embedding."""
        return min(self.truncate_dim or self.encoder.dimension, self.encoder.dimension)

    get_sentence_embedding_dimension = get_embedding_dimension

    def get_max_seq_length(self) -> int:
        """Return the most tokens of a text, special tokens included."""
        return self.encoder.max_length

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text, special tokens included."""
        return self.encoder.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        most = self.encoder.manifest.max_length
        if value > most:
            raise ConfigError(
                f"max_seq_length {value} is above the {most} tokens of the bundle: export it again "
                f"with `mirror-rt export --max-length {value}`"
            )
        self.encoder.pipeline.tokenizer.limit(value)

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by name."""
        return dict(self.encoder.prompts.by_name)

    @prompts.setter
    def prompts(self, value: Mapping[str, str]) -> None:
        self._set_prompts(Prompts(value, self.default_prompt_name))

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt of calls that name none."""
        return self.encoder.prompts.default_name

    @default_prompt_name.setter
    def default_prompt_name(self, value: str | None) -> None:
        self._set_prompts(Prompts(self.encoder.prompts.by_name, value))

    @property
    def similarity_fn_name(self) -> str:
        """The name of the function that compares vectors; a `SimilarityFunction` sets it, too."""
        return self._similarity.value

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: object) -> None:
        self._similarity = function_named("cosine" if value is None else value)

    @property
    def tokenizer(self) -> Any:
        """A copy of the tokenizer, as one of transformers, which has to be installed."""
        library = require("transformers", extra="train", purpose="a tokenizer of transformers")
        return library.AutoTokenizer.from_pretrained(
            self.encoder.folder, model_max_length=self.max_seq_length
        )

    @property
    def device(self) -> Device:
        """The device of the model: `"cpu"` or `"cuda:0"`, equal to the `torch.device` of it."""
        return Device(self.encoder.devices[0])

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Keep the first so many dimensions within the block."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    def _set_prompts(self, prompts: Prompts) -> None:
        _find(prompts.by_name, prompts.default_name, "Default prompt name")
        pipeline = self.encoder.pipeline
        pipeline.defaults = replace(pipeline.defaults, prompts=prompts)

    def _prompt_text(self, prompt: str | None, name: str | None) -> str:
        """Return what to put before each text; a prompt goes before the name of one."""
        if prompt is not None and name is not None:
            logger.warning(
                "Provide either a `prompt`, a `prompt_name`, or neither, but not both. "
                "Ignoring the `prompt_name` in favor of `prompt`."
            )
        if prompt is None:
            name = self.default_prompt_name if name is None else name
            return _find(self.prompts, name, "Prompt name")
        return prompt


def _find(prompts: Mapping[str, str], name: str | None, what: str) -> str:
    # The words are those of the original: programs look for them.
    if name is not None and name not in prompts:
        raise ConfigError(
            f"{what} {name!r} not found in the configured prompts dictionary with keys "
            f"{list(prompts)!r}."
        )
    return "" if name is None else prompts[name]
