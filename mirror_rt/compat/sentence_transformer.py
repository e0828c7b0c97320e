"""Offer the interface of `sentence_transformers.SentenceTransformer` over an `Encoder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mirror_rt.compat.arguments import as_tensor, device_options, has_tensors, refuse
from mirror_rt.compat.model_properties import ModelProperties
from mirror_rt.compat.util import SimilarityName, pairwise_similarity, similarity
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadKeywords
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import as_list
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.prompts import QUERY_NAMES, Prompts
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.quantization import calibration_ranges, quantize_embeddings

OutputValue = Literal["sentence_embedding", "token_embeddings"] | None
Pool = dict[str, Any]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

_IN_THE_BUNDLE = "the bundle holds it; change the model, and run `mirror-rt export MODEL`"
_REFUSED = {
    "modules": _IN_THE_BUNDLE,
    "trust_remote_code": "a bundle has no code",
    "processor_kwargs": _IN_THE_BUNDLE,
    "config_kwargs": _IN_THE_BUNDLE,
    "model_card_data": "the bundle's card is README.md in its folder",
    "cache_folder": "set MIRROR_RT_CACHE, or HF_HOME for the files of a hub",
    "token": "set HF_TOKEN",
    "use_auth_token": "set HF_TOKEN",
}
# Members of the original class that change a model, which is not what this class is for.
_ELSEWHERE = {
    **dict.fromkeys(("fit", "old_fit"), "tune with `mirror-rt tune`, then export"),
    **dict.fromkeys(
        ("save", "save_pretrained"), "the bundle's folder is complete; copy it, or push it"
    ),
    **dict.fromkeys(("push_to_hub", "save_to_hub"), "run `mirror-rt push BUNDLE OWNER/NAME`"),
    "evaluate": "run `mirror-rt evaluate`",
    **dict.fromkeys(("to", "cuda", "half", "bfloat16"), "choose device= or variant= when loading"),
    "tokenizer": "use tokenize(), or the bundle's tokenizer.json",
}


class SentenceTransformer(ModelProperties):
    """A bundle with the methods of `sentence_transformers.SentenceTransformer`, without torch.

    Results are numpy arrays, where the original returns a tensor, too, unless a tensor is asked
    for (`convert_to_tensor`) or given (`similarity`). A blank string is an InvalidTextError, which
    `errors="nan"` avoids, and `Encoder.encode`'s other options are taken as well.

    Args:
        model_name_or_path: folder or name of a bundle.
        device: `"cpu"`, `"cuda"` or `"cuda:1"`; None for a card where there is one.
        prompts: name -> text, in place of the bundle's.
        default_prompt_name: prompt of every call that names none.
        revision: branch, tag or commit of a name on a hub.
        local_files_only: load from the cache, never from a hub.
        model_kwargs: fields of `LoadOptions`, such as `{"variant": "int8", "threads": 2}`.
        backend: `"torch"` and `"onnx"` mean the same here: onnxruntime runs the bundle.
        similarity_fn_name: `"cosine"`, `"dot"`, `"euclidean"` or `"manhattan"`.
        truncate_dim: keep the first so many dimensions.
        **refused: the original's other arguments, which have no meaning here.

    Raises:
        ConfigError: an argument cannot be followed; the error says what to do instead.
        BundleError: there is no such bundle (see `Encoder.load`).
    """

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
        similarity_fn_name: SimilarityName | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        refuse(type(self).__name__, _REFUSED, locals())
        if not isinstance(model_name_or_path, str | Path):
            raise ConfigError(
                f"give the folder or the name of a bundle, got {model_name_or_path!r}"
            )
        options: dict[str, Any] = {**device_options(device), **(model_kwargs or {})}
        refuse_unknown("model_kwargs", options, LoadKeywords.__annotations__)
        if backend == "openvino":
            options.setdefault("providers", "openvino")
        self.encoder = Encoder.load(
            model_name_or_path, revision=revision, offline=local_files_only, **options
        )
        declared = self.encoder.prompts
        self._set_prompts(
            Prompts(
                declared.by_name if prompts is None else prompts,
                declared.default_name if default_prompt_name is None else default_prompt_name,
            )
        )
        self.similarity_fn_name: SimilarityName = similarity_fn_name or "cosine"
        self.truncate_dim = truncate_dim

    def encode(
        self,
        inputs: str | Sequence[str] | npt.NDArray[np.str_],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
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
            precision: as the original, `int8` and `uint8` take their ranges from the result.
            convert_to_numpy: False gives a list of tensors, which needs torch.
            convert_to_tensor: return a torch tensor; needs torch.
            device: the one that the model was loaded on.
            normalize_embeddings: True for unit vectors; False for what the model declares.
            truncate_dim: keep the first so many dimensions; None for that of the class.
            pool: of `start_multi_process_pool`.
            chunk_size: not needed, because the work is divided by tokens.
            **kwargs: further options of `Encoder.encode`: `on_too_long`, `errors`, `ranges`.

        Returns:
            float32 [n, D], or [D] for one string.

        Raises:
            InvalidTextError: a text cannot be encoded; the error names each of them.
            ConfigError: an argument cannot be followed.
        """
        self._check_device(device)
        refuse_unknown("encode", kwargs, EncodeKeywords.__annotations__)
        one = isinstance(inputs, str)
        texts = as_list(inputs)
        options: EncodeKeywords = {**kwargs, "batch_size": batch_size}  # type: ignore[typeddict-item]
        options |= {"prompt_name": prompt_name, "prompt": prompt}
        if output_value != "sentence_embedding":
            found: Any = self._token_outputs(texts, output_value, options)
            if convert_to_tensor or not convert_to_numpy:
                found = as_tensor(found)
            return found[0] if one else found
        vectors = self.encoder.encode(texts, show_progress_bar=show_progress_bar, **options)
        # As in the original, a layer that normalises comes before the truncation.
        vectors = vectors[:, : self.truncate_dim if truncate_dim is None else truncate_dim]
        if normalize_embeddings:
            vectors = normalize_rows(vectors)
        if precision != "float32" and len(vectors):
            ranges = calibration_ranges(vectors) if precision.endswith("int8") else None
            vectors = quantize_embeddings(vectors, precision, ranges=kwargs.get("ranges", ranges))
        result: Any = vectors
        if convert_to_tensor or not convert_to_numpy:
            result = as_tensor(vectors if convert_to_tensor else list(vectors))
        return result[0] if one else result

    def encode_query(
        self,
        inputs: str | Sequence[str] | npt.NDArray[np.str_],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Encode with the model's prompt `query`; arguments as in `encode`."""
        name = self._prompt_of(QUERY_NAMES, prompt_name, prompt)
        return self.encode(inputs, name, prompt, *rest, **options)

    def encode_document(
        self,
        inputs: str | Sequence[str] | npt.NDArray[np.str_],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Encode with the model's prompt `document`; arguments as in `encode`."""
        name = self._prompt_of(("document", "passage", "corpus"), prompt_name, prompt)
        return self.encode(inputs, name, prompt, *rest, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compare all rows [n, D] with all rows [m, D]: float32 [n, m], larger is more alike."""
        return self._compared(similarity, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Compare the rows [n, D] with the same rows of [n, D]: float32 [n]."""
        return self._compared(pairwise_similarity, embeddings1, embeddings2)

    def tokenize(self, texts: Sequence[str], **kwargs: Any) -> dict[str, npt.NDArray[np.int64]]:
        """Return `input_ids` and `attention_mask`, int64 [n, L], padded to the longest text."""
        refuse("tokenize", dict.fromkeys(kwargs, "it has no options"), kwargs)
        rows = self.encoder.tokenize(texts)
        longest = max(map(len, rows), default=0)
        ids = np.full((len(rows), longest), self.encoder.manifest.pad_id, np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        return {"input_ids": ids, "attention_mask": mask}

    def start_multi_process_pool(self, target_devices: list[str] | None = None) -> Pool:
        """Return a pool for `encode(pool=...)`: this process, which uses all processors already.

        Raises:
            ConfigError: the devices are not those that the model was loaded on.
        """
        for device in target_devices or []:
            self._check_device(device)
        return {"input": None, "output": None, "processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: Pool) -> None:
        """Do nothing: a pool holds no processes."""

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
        return self.encode(
            sentences,
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            precision=precision,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
        )

    def eval(self) -> SentenceTransformer:
        """Return the model as it is, which never trains."""
        return self

    def __getattr__(self, name: str) -> Any:
        hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r} here{hint}", name=name)

    def __repr__(self) -> str:
        return f"SentenceTransformer({str(self.encoder.folder)!r})"

    def _prompt_of(
        self, names: tuple[str, ...], prompt_name: str | None, prompt: str | None
    ) -> str | None:
        if prompt_name is not None or prompt is not None:
            return prompt_name
        return self.encoder.prompts.first_of(names)

    def _check_device(self, device: object) -> None:
        if device is not None and str(device) not in (self.device, self.device.split(":")[0]):
            raise ConfigError(
                f"the model is on {self.device}, not on {device}: choose the device when loading, "
                f"SentenceTransformer(..., device={str(device)!r})"
            )

    def _compared(self, compare: Callable[..., npt.NDArray[np.float32]], a: Any, b: Any) -> Any:
        scores = compare(self.similarity_fn_name, a, b)
        return as_tensor(scores) if has_tensors(a) or has_tensors(b) else scores

    def _token_outputs(
        self, texts: list[str], output_value: OutputValue, options: EncodeKeywords
    ) -> list[Any]:
        if output_value not in ("token_embeddings", None):
            raise ConfigError(
                field="output_value",
                expected="'sentence_embedding', 'token_embeddings' or None",
                value=output_value,
            )
        of_tokens = self.encoder.encode_tokens(texts, **options)
        if output_value is not None:
            return of_tokens
        vectors = self.encoder.encode(texts, **options)
        prompt = self.encoder.pipeline.plan(**options).prompt
        ids = self.encoder.tokenize([prompt + text for text in texts])
        return [
            {
                "input_ids": np.asarray(row),
                "attention_mask": np.ones(len(row), np.int64),
                "token_embeddings": tokens,
                "sentence_embedding": vector,
            }
            for row, tokens, vector in zip(ids, of_tokens, vectors, strict=True)
        ]
