"""Offer the interface of `sentence_transformers.SentenceTransformer` over an `Encoder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import numpy.typing as npt

from mirror_rt.compat.arguments import as_tensor, limited, refuse, renamed, typed_as, with_blanks
from mirror_rt.compat.base_model import Pool
from mirror_rt.compat.model_properties import DOCUMENT_NAMES, ModelProperties, encode_as
from mirror_rt.compat.util import (
    SimilarityFunction,
    pairwise_similarity,
    quantize_embeddings,
    similarity,
    truncate_embeddings,
)
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import as_list
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.pipeline.prompts import QUERY_NAMES
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.vectors.normalization import normalize_rows

Inputs = str | Sequence[str] | npt.NDArray[np.str_]
OutputValue = Literal["sentence_embedding", "token_embeddings"] | None
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
_PRECISIONS = get_args(Precision)


class SentenceTransformer(ModelProperties):
    """A bundle with the methods of `sentence_transformers.SentenceTransformer`, without torch.

    Results are numpy arrays, where the original returns a tensor, too, unless a tensor is asked
    for (`convert_to_tensor`) or given (`similarity`). A blank string has a vector, as in the
    original. `Encoder.encode`'s other options are taken as well.

    Args:
        model_name_or_path: folder or name of a bundle.
        device: `"cpu"`, `"cuda"` or `"cuda:1"`; None for a card where there is one.
        prompts: name -> text, beside the bundle's and before those of the same name.
        default_prompt_name: prompt of every call that names none.
        revision: branch, tag or commit of a name on a hub.
        local_files_only: load from the cache, never from a hub.
        model_kwargs: fields of `LoadOptions`, such as `{"variant": "int8", "threads": 2}`.
        backend: `"torch"` and `"onnx"` mean the same here: `Encoder.load` chooses the engine.
        processor_kwargs: `{"model_max_length": n}` sets `max_seq_length`.
        similarity_fn_name: a member of `SimilarityFunction`, or its name; None for the one
            that the bundle declares.
        truncate_dim: number of the first dimensions to keep.
        **refused: the original's other arguments, which have no meaning here.

    Raises:
        ConfigError: an argument cannot be followed; the error says what to do instead.
        BundleError: there is no such bundle (see `Encoder.load`).
    """

    @renamed(tokenizer_kwargs="processor_kwargs")
    def __init__(
        self,
        model_name_or_path: str | Path,
        *,
        modules: object = None,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        use_auth_token: bool | str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: object = None,
        backend: Literal["torch", "onnx", "openvino"] = "torch",
        similarity_fn_name: SimilarityFunction | str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        self.encoder = self._load(Encoder.load, locals())
        declared = self.encoder.description.similarity
        self.similarity_fn_name = declared if similarity_fn_name is None else similarity_fn_name
        self.truncate_dim = truncate_dim

    @overload
    def encode(
        self,
        inputs: Inputs,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int = ...,
        show_progress_bar: bool | None = ...,
        output_value: Literal["sentence_embedding"] = ...,
        precision: Literal["float32"] | None = ...,
        convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ...,
        **kwargs: Any,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def encode(self, inputs: Inputs, *args: Any, **kwargs: Any) -> Any: ...

    @renamed(sentences="inputs")
    def encode(
        self,
        inputs: Inputs,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | list[str] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Encode one text or several.

        Args:
            inputs: one string, or a sequence of strings.
            prompt_name: name of the prompt to put before every text.
            prompt: text to put before every text instead.
            batch_size: as in `Encoder.encode`, texts of 64 tokens.
            show_progress_bar: None shows one if the logger `mirror_rt` is at level INFO.
            output_value: `"token_embeddings"` for a matrix [tokens, H] of each text, and None for
                a dict of each text with ids, mask and both kinds of vectors.
            precision: as the original, `int8` and `uint8` take their ranges from the result, and
                None is `float32`.
            convert_to_numpy: False gives a list of tensors, which needs torch.
            convert_to_tensor: return a torch tensor; needs torch.
            device: the one that the model was loaded on, also several times in a list.
            normalize_embeddings: True for unit vectors; False as the model declares.
            truncate_dim: number of the first dimensions to keep; None for that of the class.
            pool: of `start_multi_process_pool`.
            chunk_size: not needed, because the work is divided by tokens.
            **kwargs: further options of `Encoder.encode`: `on_too_long`, `errors`, `ranges`; of
                `processing_kwargs`, the limit of a text has an effect.

        Returns:
            float32 [n, D], or [D] for one string.

        Raises:
            InvalidTextError: a text cannot be encoded; the error names each of them.
            ConfigError: an argument cannot be followed.
        """
        self._check_devices(device)
        if precision not in (None, *_PRECISIONS):
            raise ConfigError(f"Precision {precision!r} is not supported: one of {_PRECISIONS} is")
        kwargs.pop("task", None)  # which part of a model to use; a bundle has one
        pipeline = limited(self.encoder.pipeline, kwargs)
        refuse_unknown("encode", kwargs, EncodeKeywords.__annotations__)
        one = isinstance(inputs, str)
        texts = as_list(inputs)
        ranges = kwargs.pop("ranges", None)
        options: EncodeKeywords = {**kwargs, "batch_size": batch_size}  # type: ignore[typeddict-item]
        options["prompt"] = self._prompt_text(prompt, prompt_name)
        truncate_dim = self.truncate_dim if truncate_dim is None else truncate_dim
        if output_value != "sentence_embedding":
            found: Any = self._token_outputs(pipeline, texts, output_value, truncate_dim, options)
            if convert_to_tensor or not convert_to_numpy:
                found = as_tensor(found)
            return found[0] if one else found
        # As in the original, a layer that normalises comes before the truncation.
        vectors = truncate_embeddings(
            _vectors(pipeline, texts, options, show_progress_bar), truncate_dim
        )
        if normalize_embeddings:
            vectors = normalize_rows(vectors)
        if precision not in (None, "float32") and len(vectors):
            vectors = quantize_embeddings(vectors, precision, ranges)
        result: Any = vectors
        if convert_to_tensor or not convert_to_numpy:
            result = as_tensor(vectors if convert_to_tensor else list(vectors))
        return result[0] if one else result

    encode_query = typed_as(encode)(encode_as(encode, "query", QUERY_NAMES))
    encode_document = typed_as(encode)(encode_as(encode, "document", DOCUMENT_NAMES))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compare all rows [n, D] with all rows [m, D]: float32 [n, m], larger is more alike."""
        return similarity(self._similarity, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compare the rows [n, D] with the same rows of [n, D]: float32 [n]."""
        return pairwise_similarity(self._similarity, embeddings1, embeddings2)

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Return `input_ids` and `attention_mask`, int64 [n, L], padded to the longest text."""
        refuse("preprocess", dict.fromkeys(kwargs, "its only option is prompt"), kwargs)
        pipeline = self.encoder.pipeline
        ids = _ids(pipeline, list(inputs), {"prompt": prompt or ""})
        batch = pipeline.pad(RaggedTokens.from_lists(ids))
        return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}

    def tokenize(self, texts: Sequence[str], **kwargs: Any) -> dict[str, npt.NDArray[np.int64]]:
        """Call `preprocess`, which is its name since version 6 of the original."""
        return self.preprocess(texts, **kwargs)

    def encode_multi_process(
        self,
        sentences: list[str],
        pool: Pool,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        chunk_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: Precision = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Encode like `encode`, in this process, which uses all processors already."""
        given = locals()
        return self.encode(**{name: given[name] for name in given if name != "self"})

    def _token_outputs(
        self,
        pipeline: Pipeline,
        texts: list[str],
        output_value: OutputValue,
        truncate_dim: int | None,
        options: EncodeKeywords,
    ) -> list[Any]:
        if output_value not in ("token_embeddings", None):
            raise ConfigError(
                field="output_value",
                expected="'sentence_embedding', 'token_embeddings' or None",
                value=output_value,
            )
        ids = _ids(pipeline, texts, options)
        of_tokens = self.encoder.encode_tokens(ids, **options)
        if output_value is not None:
            return of_tokens
        vectors = truncate_embeddings(_vectors(pipeline, texts, options), truncate_dim)
        return [
            {
                "input_ids": np.asarray(row),
                "attention_mask": np.ones(len(row), np.int64),
                "token_embeddings": tokens,
                "sentence_embedding": vector,
            }
            for row, tokens, vector in zip(ids, of_tokens, vectors, strict=True)
        ]


def _vectors(
    pipeline: Pipeline, texts: list[str], options: EncodeKeywords, show: bool | None = False
) -> Any:
    return pipeline.encode(with_blanks(texts), pipeline.plan(**options), show).embeddings


def _ids(pipeline: Pipeline, texts: list[str], options: EncodeKeywords) -> list[list[int]]:
    plan = pipeline.plan(**options)
    found = []
    for window in with_blanks(texts):
        tokens = pipeline.tokenize(window, plan).tokens
        found += [tokens.ids[a:b].tolist() for a, b in tokens.spans()]
    return found
