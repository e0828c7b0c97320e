"""Offer the interface of `sentence_transformers.MultiVectorEncoder` over one of mirror_rt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, cast

from mirror_rt.compat.arguments import as_array, as_tensor, refuse, typed_as, with_blanks
from mirror_rt.compat.base_model import Pool
from mirror_rt.compat.model_properties import EmbeddingModel, encode_as
from mirror_rt.compat.util import SimilarityFunction
from mirror_rt.errors import ConfigError
from mirror_rt.keywords import refuse_unknown
from mirror_rt.late_interaction import encoder as late
from mirror_rt.late_interaction.token_encoder import OPTIONS, Side
from mirror_rt.pipeline.inputs import Texts, as_list
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.progress import progress_bar
from mirror_rt.vectors.normalization import normalize_rows

_REFUSED = {
    "convert_to_tensor": "MultiVectorEncoder.encode() has no `convert_to_tensor`, because the "
    "texts have different numbers of vectors: leave it out, or give convert_to_numpy=True",
    "processing_kwargs": "the lengths of queries and documents are those of the model's folder",
}


class MultiVectorEncoder(EmbeddingModel):
    """A model with the methods of `sentence_transformers.MultiVectorEncoder`, without torch.

    Where torch is imported, results are tensors, as in the original; elsewhere they are arrays. A
    blank string is a text, as in the original.

    The prefixes of a model of PyLate or of Stanford's ColBERT are tokens that its texts always get,
    and no part of `prompts`; so `encode` of such a model needs a `task`.

    Args:
        model_name_or_path: folder or name of a late-interaction model, or its bundle.
        similarity_fn_name: `"maxsim"` or `"meanmaxsim"`; None for the one that the model declares.
        **others: as those of `SentenceTransformer`, taken or refused.

    Raises:
        ConfigError: an argument cannot be followed; the error says what to do instead.
        BundleError: there is no such model (see `mirror_rt.MultiVectorEncoder.load`).
    """

    SUPPORTED_SIMILARITY_FN_NAMES = ("maxsim", "meanmaxsim")
    _similarity = SimilarityFunction.MAXSIM
    encoder: late.MultiVectorEncoder
    _loaded: late.MultiVectorEncoder

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
    ) -> None:  # fmt: skip
        self.encoder = self._load(late.MultiVectorEncoder.load, locals())
        self.similarity_fn_name = similarity_fn_name or self._declared

    @property
    def _declared(self) -> str:
        return self.SUPPORTED_SIMILARITY_FN_NAMES[self.encoder.encoder.tokens.mean]

    @property
    def _pipelines(self) -> list[Pipeline]:
        return list(self._loaded.encoder.pipelines.values())

    def _limit(self, tokens: int) -> None:
        raise ConfigError(
            f"max_seq_length {tokens} is not set here: {_REFUSED['processing_kwargs']}"
        )

    def encode(
        self, inputs: Texts, prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int = 32, show_progress_bar: bool | None = None,
        output_value: Literal["token_embeddings"] | None = "token_embeddings",
        convert_to_numpy: bool = False, device: str | list[str] | None = None,
        normalize_embeddings: bool = False, pool: Pool | None = None,
        chunk_size: int | None = None, token_pooling: Any = None, task: str | None = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Encode one text or several to the vectors of their tokens, as the original.

        `output_value` is `"token_embeddings"` alone. `convert_to_numpy` gives arrays where torch is
        imported, too. `token_pooling` is a pooling of sentence-transformers, which needs torch.
        `task` is `"query"` or `"document"`; None counts as a document. `**kwargs` are the options
        `on_too_long` and `precision` of `mirror_rt.MultiVectorEncoder`.

        Returns:
            A list with the vectors [t, D] of each text; for one string these alone.

        Raises:
            InvalidTextError: a text cannot be encoded; the error names each of them.
            ConfigError: an argument cannot be followed.
        """
        self._check_devices(device)
        refuse("encode", _REFUSED, kwargs)
        refuse_unknown("encode", kwargs, OPTIONS)
        if output_value != "token_embeddings":
            expected = 'output_value must be "token_embeddings"'
            raise ConfigError(f"{expected}, got {output_value!r}: a bundle gives nothing else")
        options = {"batch_size": batch_size, "prompt": self._prompt_text(prompt, prompt_name)}
        texts, found = as_list(inputs), list[Any]()
        with closing(progress_bar(len(texts), show_progress_bar)) as bar:
            for window in with_blanks(texts):
                found += self.encoder.encoder.encode(
                    self._side(task), window, cast(EncodeKeywords, options | kwargs)
                )
                bar.update(len(window.texts))
        if normalize_embeddings:
            found = [normalize_rows(vectors) for vectors in found]
        if token_pooling is not None:
            found = token_pooling.pool(as_tensor(found), task=task)
        elif "torch" in sys.modules and not convert_to_numpy:
            found = as_tensor(found)
        if convert_to_numpy:
            found = [as_array(vectors) for vectors in found]
        return found[0] if isinstance(inputs, str) else found

    encode_query = typed_as(encode)(encode_as(encode, "query", ("query",)))
    encode_document = typed_as(encode)(encode_as(encode, "document", ("document",)))

    def similarity(self, embeddings1: Any, embeddings2: Any, **kwargs: Any) -> Any:
        """Score all documents with all queries: float32 [n, m]; options as in `util.maxsim`."""
        compare = SimilarityFunction.to_similarity_fn(self._similarity)
        return compare(embeddings1, embeddings2, **kwargs)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any, **kwargs: Any) -> Any:
        """Score each document with the query of the same number: float32 [n]."""
        compare = SimilarityFunction.to_similarity_pairwise_fn(self._similarity)
        return compare(embeddings1, embeddings2, **kwargs)

    def _side(self, task: str | None) -> Side:
        if task in ("query", "document"):
            return cast(Side, task)
        if task is not None or self.encoder.encoder.tokens.document.prefix is not None:
            expected = "'query' or 'document': call encode_query or encode_document"
            raise ConfigError(field="task", expected=expected, value=task)
        return "document"

    def _saved_settings(self) -> dict[str, Any]:
        if self.similarity_fn_name != self._declared:
            raise ConfigError(
                f"similarity_fn_name was changed from {self._declared}, which the folder keeps: "
                "set it after loading"
            )
        return super()._saved_settings()
