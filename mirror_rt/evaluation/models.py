"""Wrap the encoders that suites evaluate, one or one per language, to encode each text once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.encoding.batch_encoder import BatchEncoder, Vectors
from mirror_rt.evaluation.static_vectors import StaticVectors
from mirror_rt.vectors.normalization import normalize_rows

# Most numbers in the vectors that are kept: 512 MB of float32.
_MOST_NUMBERS = 1 << 27
# The number of tokens to which Mirror-BERT's evaluation pads and cuts every text; its mean counts
# the padding, too (the authors' evaluation/eval.py, and EMNLP 2021, caption of Table 3).
PADDED_LENGTH = 64


EvaluatedEncoder = BatchEncoder | StaticVectors


class EvaluatedModel:
    """A model under evaluation, with the vectors of the texts that it has encoded.

    Args:
        label: name of the model in the report.
        load: makes the encoder of a language (None: of a set without a declared language);
            raises DataError if there is none.
        languages: languages that have an encoder each; None if all have the same.
        source: the folder or name that it can be trained further from, and its pooling there; None
            where it cannot be trained.
    """

    def __init__(
        self,
        label: str,
        load: Callable[[str | None], EvaluatedEncoder],
        *,
        languages: frozenset[str | None] | None = None,
        source: tuple[str, Pooling | Literal["auto"]] | None = None,
    ) -> None:
        self.label, self.source = label, source
        self._load = load
        self._languages = languages
        self._open: tuple[str | None, EvaluatedEncoder] | None = None
        self._vectors: dict[tuple[str | None, str], Vectors] = {}

    def of(self, language: str | None) -> LanguageView:
        """Return the encoder for texts of `language`."""
        return LanguageView(self, language)

    def lacks(self, languages: tuple[str | None, ...]) -> list[str]:
        """Return those of `languages` for which there is no encoder."""
        if self._languages is None:
            return []
        return [tag or "undeclared" for tag in languages if tag not in self._languages]

    def pooled(self, texts: list[str], language: str | None) -> Vectors:
        """Return vectors as pooled, float32 [n, D]; every distinct text is encoded once."""
        key = self._key(language)
        missing = [text for text in dict.fromkeys(texts) if (key, text) not in self._vectors]
        if missing:
            encode = self.encoder(language).encode
            found = encode(missing, normalize_embeddings=False, show_progress_bar=False)
            new = np.asarray(found, dtype=np.float32)
            if (len(self._vectors) + len(new)) * new.shape[1] > _MOST_NUMBERS:
                self._vectors.clear()
                if len(missing) < len(set(texts)):
                    return self.pooled(texts, language)
            self._vectors.update(((key, text), row) for text, row in zip(missing, new, strict=True))
        return np.stack([self._vectors[key, text] for text in texts])

    def close(self) -> None:
        """Free the encoder and the vectors."""
        self._open = None
        self._vectors.clear()

    def _key(self, language: str | None) -> str | None:
        """Identify the encoder of a language."""
        return None if self._languages is None else language

    def encoder(self, language: str | None) -> EvaluatedEncoder:
        """Return the encoder of a language. Only one is open: two may not fit into memory."""
        key = self._key(language)
        if self._open is None or self._open[0] != key:
            self._open = None
            self._open = (key, self._load(language))
        return self._open[1]


class LanguageView:
    """An `EmbeddingModel` that encodes texts of one language with an `EvaluatedModel`."""

    def __init__(self, model: EvaluatedModel, language: str | None) -> None:
        self._model = model
        self._language = language

    def encode(
        self, inputs: list[str], *, normalize_embeddings: bool = True
    ) -> npt.NDArray[np.float32]:
        """Encode texts to float32 [n, D], of unit length or as pooled."""
        vectors = self._model.pooled(inputs, self._language)
        return normalize_rows(vectors) if normalize_embeddings else vectors

    @property
    def mask_token(self) -> str | None:
        """Return the tokenizer's mask token; None if it has none."""
        return self._model.encoder(self._language).mask_token
