"""Offer the interface of `sentence_transformers.CrossEncoder` over a `Reranker`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np

from mirror_rt.compat.arguments import (
    arrays_or_tensors,
    as_array,
    as_tensor,
    limited,
    pairs_with_blanks,
    renamed,
)
from mirror_rt.compat.base_model import BaseModel, Pool
from mirror_rt.errors import ConfigError
from mirror_rt.inference.vector_layers import ACTIVATIONS
from mirror_rt.reranking.options import ScoreActivation
from mirror_rt.reranking.reranker import Reranker

Activation = Callable[[Any], Any]
_softmax = ACTIVATIONS["softmax"]


def _declared(name: str) -> Activation:
    """Return an activation: a module of torch where that is imported, as in the original."""
    torch = sys.modules.get("torch")
    if torch is None:
        return arrays_or_tensors(ACTIVATIONS[name])
    options = {"dim": -1} if name == "softmax" else {}
    made: Activation = getattr(torch.nn, name.capitalize())(**options)
    return made


class CrossEncoder(BaseModel):
    """A bundle with the methods of `sentence_transformers.CrossEncoder`, without torch.

    Scores are numpy arrays unless a tensor is asked for. A blank text is a text, as in the
    original. The options of `Reranker.predict` (`truncation`, `errors` ...) are taken as well.

    Args:
        model_name_or_path: folder or name of a cross-encoder's bundle.
        prompts: name -> text to put before the first text of a pair.
        num_labels: the number that the bundle must have.
        max_length: most tokens of a pair.
        activation_fn: makes scores of logits [n, C]; None for the one that the bundle declares. It
            gets a tensor where torch is imported, as from the original, and else an array.
        **others: as those of `SentenceTransformer`, taken or refused.

    Raises:
        ConfigError: an argument cannot be followed; the error says what to do instead.
        BundleError: there is no such bundle (see `Reranker.load`).
    """

    reranker: Reranker

    @renamed(
        "num_labels", "max_length", "activation_fn", "device",
        model_name="model_name_or_path", automodel_args="model_kwargs",
        tokenizer_args="processor_kwargs", tokenizer_kwargs="processor_kwargs",
        config_args="config_kwargs", cache_dir="cache_folder",
        default_activation_function="activation_fn",
        classifier_dropout="config_kwargs.classifier_dropout",
    )  # fmt: skip
    def __init__(
        self, model_name_or_path: str | Path, *, modules: object = None, device: str | None = None,
        prompts: Mapping[str, str] | None = None, default_prompt_name: str | None = None,
        cache_folder: str | None = None, trust_remote_code: bool = False,
        revision: str | None = None, local_files_only: bool = False,
        token: bool | str | None = None, model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None, model_card_data: object = None,
        backend: Literal["torch", "onnx", "openvino"] = "torch", num_labels: int | None = None,
        max_length: int | None = None, activation_fn: Activation | None = None,
        keep_in_fp32_modules: list[str] | None = None,
    ) -> None:  # fmt: skip
        if max_length is not None:
            processor_kwargs = {**(processor_kwargs or {}), "model_max_length": max_length}
        self.reranker = self._load(Reranker.load, locals())
        if num_labels not in (None, self.num_labels):
            raise ConfigError(field="num_labels", expected=f"{self.num_labels}", value=num_labels)
        self._activation_fn = activation_fn

    @property
    def num_labels(self) -> int:
        """The number C of scores of a pair."""
        return self.reranker.num_labels

    @property
    def config(self) -> SimpleNamespace:
        """The part of the configuration that programs read: the number and names of labels."""
        labels = dict(enumerate(self.reranker.labels))
        found = {
            "num_labels": self.num_labels, "id2label": labels, "classifier_dropout": None,
            "label2id": {label: number for number, label in labels.items()},
        }  # fmt: skip
        return SimpleNamespace(**found | self._settings)

    @property
    def model(self) -> SimpleNamespace:
        """The part of the module of PyTorch that programs read: its configuration and device."""
        return SimpleNamespace(config=self.config, device=self.device)

    max_length = BaseModel.max_seq_length  # its name before version 6 of the original

    @property
    def activation_fn(self) -> Activation:
        """The function that makes scores of logits [n, C], unless a call names another."""
        return self._activation_fn or _declared(self.reranker.activation)

    @activation_fn.setter
    def activation_fn(self, value: Activation | None) -> None:
        self._activation_fn = value

    @property
    def default_activation_function(self) -> Activation:
        """The name of `activation_fn` before version 4 of the original."""
        warnings.warn(
            "The `default_activation_function` property was renamed and is now deprecated, use "
            "`activation_fn`", DeprecationWarning, stacklevel=2,
        )  # fmt: skip
        return self.activation_fn

    def _saved_settings(self) -> dict[str, Any]:
        name, kind = self.reranker.activation.capitalize(), type(self._activation_fn)
        if self._activation_fn is not None:
            name = kind.__name__ if kind.__module__.startswith("torch.nn.") else ""
        if name.lower() not in get_args(ScoreActivation):
            expected = "an Identity, Sigmoid, Softmax or Tanh of torch.nn, to be saved"
            raise ConfigError(field="activation_fn", expected=expected, value=self._activation_fn)
        place = "linear" if name == "Identity" else "activation"
        return super()._saved_settings() | {"activation_fn": f"torch.nn.modules.{place}.{name}"}

    @renamed(sentences="inputs", activation_fct="activation_fn", num_workers=None)
    def predict(
        self, inputs: Any, prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int = 32, show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None, apply_softmax: bool | None = False,
        convert_to_numpy: bool = True, convert_to_tensor: bool = False,
        device: str | list[str] | None = None, pool: Pool | None = None,
        chunk_size: int | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Score one pair of texts or several, with the arguments of the original.

        `batch_size` counts pairs of 64 tokens. A prompt goes before the first text of every pair.
        `**kwargs` are further options of `Reranker.predict`; of `processing_kwargs`, the limit of
        a text has an effect.

        Returns:
            float32 [n], or with C > 1 labels [n, C]; without the n for one pair.

        Raises:
            InvalidTextError: an item is no pair of texts; the error names each of them.
            ConfigError: an argument cannot be followed.
        """
        self._check_devices(device)
        one = self.is_singular_input(inputs)
        pairs = inputs.tolist() if isinstance(inputs, np.ndarray) else inputs
        pipeline = limited(self.reranker.pipeline, kwargs)
        windows, plan = pairs_with_blanks(
            pipeline, [pairs] if one else pairs, batch_size, kwargs,
            self._prompt_text(prompt, prompt_name),
        )  # fmt: skip
        logits = pipeline.encode(windows, plan, show_progress_bar).embeddings
        scores: Any = self._scores(logits, activation_fn or self.activation_fn)
        if apply_softmax and scores.ndim > 1:
            scores = _softmax(scores)
        if convert_to_tensor or not convert_to_numpy:
            tensor = as_tensor(scores)
            scores = tensor if convert_to_tensor else list(tensor)
        return scores[0] if one else scores

    def _scores(self, logits: Any, activation: Activation) -> Any:
        scores = as_array(activation(as_tensor(logits) if "torch" in sys.modules else logits))
        scores = np.asarray(scores, np.float32)
        return scores[:, 0] if self.num_labels == 1 and scores.ndim > 1 else scores

    @renamed(
        activation_fct="activation_fn", num_workers=None, convert_to_numpy=None,
        convert_to_tensor=None, apply_softmax=None,
    )  # fmt: skip
    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None,
        return_documents: bool = False, prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int = 32, show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None, device: str | list[str] | None = None,
        pool: Pool | None = None, chunk_size: int | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Rank documents by their scores with a query, the best first, as the original.

        Returns:
            A dictionary for each document: `corpus_id`, `score`, and perhaps `text`.

        Raises:
            InvalidTextError, ConfigError: as `predict`; or the model has several labels.
        """
        if self.num_labels != 1:  # in the words of the original, which programs look for
            raise ConfigError(
                "CrossEncoder.rank() only works for models with num_labels=1. "
                "Consider using CrossEncoder.predict() with input pairs instead."
            )
        scores = self.predict(
            [(query, document) for document in documents], prompt_name, prompt, batch_size,
            show_progress_bar, activation_fn, device=device, pool=pool, chunk_size=chunk_size,
        ).tolist()  # fmt: skip
        results = [
            {"corpus_id": i, "score": score} | ({"text": text} if return_documents else {})
            for i, (score, text) in enumerate(zip(scores, documents, strict=True))
        ]
        return sorted(results, key=lambda one: one["score"], reverse=True)[:top_k]

    @staticmethod
    def is_singular_input(inputs: Any) -> bool:
        """Tell whether `inputs` is one pair, and not several."""
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UO":
            return bool(inputs.size) and inputs.ndim < 2
        several = type(inputs).__name__ == "Column" or isinstance(inputs, list | tuple)
        return not several or (len(inputs) > 0 and isinstance(inputs[0], str))
