"""Offer the interface of `sentence_transformers.SparseEncoder` over one of mirror_rt."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mirror_rt.compat.arguments import limited, renamed, typed_as, with_blanks
from mirror_rt.compat.base_model import Pool
from mirror_rt.compat.model_properties import DOCUMENT_NAMES, EmbeddingModel, encode_as
from mirror_rt.compat.sparse_tensors import as_embeddings, as_rows
from mirror_rt.compat.util import SimilarityFunction, pairwise_similarity, similarity
from mirror_rt.errors import ConfigError
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import Texts, as_list
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.pipeline.prompts import QUERY_NAMES
from mirror_rt.progress import progress_bar
from mirror_rt.sparse import sparse_encoder
from mirror_rt.sparse.options import SparseKeywords, SparseOptions
from mirror_rt.sparse.vectors import SparseVector, SparseVectors

Words = list[tuple[str, float]]


class SparseEncoder(EmbeddingModel):
    """A sparse encoder with the methods of `sentence_transformers.SparseEncoder`, without torch.

    Where torch is imported, results are sparse tensors, as in the original; elsewhere they are
    `SparseVectors`, of which one text has a `SparseVector`. A blank string is a text, as in the
    original. The options of `mirror_rt.SparseEncoder.encode` are taken as well.

    Args:
        model_name_or_path: folder or name of a sparse encoder, or its bundle.
        similarity_fn_name: as in `SentenceTransformer`; None for the one that the model declares,
            which is the dot product if it declares none.
        max_active_dims: most words of a text; None for the number that the model declares.
        **others: as those of `SentenceTransformer`, taken or refused.

    Raises:
        ConfigError: an argument cannot be followed; the error says what to do instead.
        BundleError: there is no such model (see `mirror_rt.SparseEncoder.load`).
    """

    _similarity = SimilarityFunction.DOT
    encoder: sparse_encoder.SparseEncoder
    _loaded: sparse_encoder.SparseEncoder

    @renamed(tokenizer_kwargs="processor_kwargs")
    def __init__(
        self, model_name_or_path: str | Path, *, modules: object = None, device: str | None = None,
        prompts: Mapping[str, str] | None = None, default_prompt_name: str | None = None,
        cache_folder: str | None = None, trust_remote_code: bool = False,
        revision: str | None = None, local_files_only: bool = False,
        token: bool | str | None = None, model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None, model_card_data: object = None,
        backend: Literal["torch", "onnx", "openvino"] = "torch",
        similarity_fn_name: SimilarityFunction | str | None = None,
        max_active_dims: int | None = None,
    ) -> None:  # fmt: skip
        self.encoder = self._load(sparse_encoder.SparseEncoder.load, locals())
        described, words = self.encoder.description, self.encoder.manifest.words
        declared = described.similarity if described.kind else None
        self.similarity_fn_name = declared if similarity_fn_name is None else similarity_fn_name
        asked = SparseOptions(max_active_dims=max_active_dims).max_active_dims
        self.max_active_dims = asked or (words and words.active)

    @property
    def _pipelines(self) -> list[Pipeline]:
        return [self._loaded.pipeline, self._loaded.query_pipeline]

    @renamed(sentences="inputs")
    def encode(
        self, inputs: Texts, prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int = 32, show_progress_bar: bool | None = None,
        convert_to_tensor: bool = True, convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False, device: str | list[str] | None = None,
        max_active_dims: int | None = None, pool: Pool | None = None,
        chunk_size: int | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Encode one text or several, with the arguments of the original.

        Without `convert_to_tensor` it is a list with a vector of each text, and without
        `convert_to_sparse_tensor` the vectors are dense. `**kwargs` are further options of
        `mirror_rt.SparseEncoder.encode`, and `task`; of `processing_kwargs`, the limit of a text
        has an effect.

        Returns:
            Sparse vectors [n, V], or [V] for one string.

        Raises:
            InvalidTextError: a text cannot be encoded; the error names each of them.
            ConfigError: an argument cannot be followed.
        """
        self._check_devices(device)
        encoder, query = self.encoder, kwargs.pop("task", None) == "query"
        pipeline = limited(encoder.query_pipeline if query else encoder.pipeline, kwargs)
        refuse_unknown("encode", kwargs, SparseKeywords.__annotations__)
        texts, rows = as_list(inputs), list[SparseVector]()
        options: dict[str, Any] = {
            "batch_size": batch_size, "prompt": self._prompt_text(prompt, prompt_name),
            "max_active_dims": max_active_dims or self.max_active_dims or encoder.dimension,
        }  # fmt: skip
        stream = encoder.encode_windows(
            with_blanks(texts), SparseOptions(**options | kwargs), query=query, pipeline=pipeline
        )
        with closing(progress_bar(len(texts), show_progress_bar)) as bar, closing(stream):
            for found in stream:
                rows += found
                bar.update(len(found))
        return as_embeddings(
            SparseVectors.join(rows, encoder.dimension), one=isinstance(inputs, str),
            sparse=convert_to_sparse_tensor, stacked=convert_to_tensor,
        )  # fmt: skip

    encode_query = typed_as(encode)(encode_as(encode, "query", QUERY_NAMES))
    encode_document = typed_as(encode)(encode_as(encode, "document", DOCUMENT_NAMES))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compare all rows [n, V] with all rows [m, V]: float32 [n, m], larger is more alike."""
        left, right = as_rows(embeddings1)[0], as_rows(embeddings2)[0]
        return similarity(self._similarity, left.toarray(), right.toarray())

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compare the rows [n, V] with the same rows of [n, V]: float32 [n]."""
        left, right = as_rows(embeddings1)[0], as_rows(embeddings2)[0]
        return pairwise_similarity(self._similarity, left.toarray(), right.toarray())

    def decode(self, embeddings: Any, top_k: int | None = None) -> Words | list[Words]:
        """Return the words of each embedding [n, V], or of one [V], with their weights.

        Raises:
            ConfigError: `top_k` is less than 1, or these are no embeddings.
        """
        if top_k is not None and top_k < 1:
            raise ConfigError(f"top_k must be a positive integer, got {top_k}.")
        if isinstance(embeddings, SparseVector):
            return self.encoder.decode(embeddings, top_k)
        rows, one = as_rows(embeddings)
        words = [self.encoder.decode(row, top_k) for row in rows]
        return words[0] if one else words

    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]:
        """Return the mean number of words of a text, and the mean share of words without weight."""
        rows, _ = as_rows(embeddings)
        mean = float(np.mean(np.diff(rows.indptr))) if len(rows) and rows.size else 0.0
        return {"active_dims": mean, "sparsity_ratio": 1 - mean / max(rows.size, 1)}

    @staticmethod
    def intersection(embeddings_1: Any, embeddings_2: Any) -> Any:
        """Multiply one embedding [V] with another [V], or each of [n, V], word by word."""
        (left, _), (right, one) = as_rows(embeddings_1), as_rows(embeddings_2)
        if len(left) != 1 or left.size != right.size:
            expected = f"one embedding of {right.size} words"
            raise ConfigError(field="embeddings_1", expected=expected, value=left.shape)
        weights = left.toarray()[0]
        rows = [SparseVector(row.indices, row.values * weights[row.indices]) for row in right]
        kept = [SparseVector(i[values > 0], values[values > 0]) for i, values in rows]
        return as_embeddings(SparseVectors.join(kept, right.size), one=one)

    def _saved_settings(self) -> dict[str, Any]:
        return super()._saved_settings() | {"max_active_dims": self.max_active_dims}
