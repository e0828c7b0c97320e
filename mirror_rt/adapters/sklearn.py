"""Adapt encoders to scikit-learn: `MirrorVectorizer` is the first step of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from mirror_rt.adapters.lazy import LazyEncoder, TextEncoder
from mirror_rt.errors import importing
from mirror_rt.vectors.quantization import Embeddings

with importing("sklearn", extra="sklearn", purpose="mirror_rt.adapters.sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin


class MirrorVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Turn texts into vectors, used like `TfidfVectorizer`; parameters are those of `LazyEncoder`.

    It learns nothing from the texts: `fit` loads the model. It is cloned and pickled as its
    parameters. `encode_kwargs={"prompt_name": ...}` chooses a prompt; by default, texts are encoded
    as neither queries nor documents.
    """

    def __init__(
        self,
        model: str | Path | TextEncoder,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.model_kwargs = model_kwargs
        self.encode_kwargs = encode_kwargs

    def fit(self, X: object = None, y: object = None) -> Self:  # noqa: N803
        """Load the model.

        Raises:
            MirrorError: the model cannot be loaded, or a parameter has an unusable value.
        """
        self._lazy = LazyEncoder(self.model, self.model_kwargs, self.encode_kwargs)
        self._n_features_out = self._lazy.dimension
        return self

    def transform(self, X: Iterable[str]) -> Embeddings:  # noqa: N803
        """Encode texts: [n, D].

        Args:
            X: list, Series or column of texts.

        Raises:
            InvalidTextError: a text cannot be encoded.
        """
        if not hasattr(self, "_lazy"):
            self.fit()
        return self._lazy.encode(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        return tags
