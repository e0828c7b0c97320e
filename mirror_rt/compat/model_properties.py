"""Offer what sentence-transformers tells of a model, and lets a caller set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.pipeline.prompts import Prompts


class ModelProperties:
    """The properties of a model by the names of `sentence_transformers.SentenceTransformer`."""

    encoder: Encoder
    truncate_dim: int | None

    def get_embedding_dimension(self) -> int:
        """Return the length D of an embedding."""
        return self.truncate_dim or self.encoder.dimension

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
    def device(self) -> str:
        """The device of the model: `"cpu"` or `"cuda:0"`."""
        return self.encoder.devices[0]

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
        prompts.choose(None, None)  # so that a default without its prompt is an error now
        pipeline = self.encoder.pipeline
        pipeline.defaults = replace(pipeline.defaults, prompts=prompts)
