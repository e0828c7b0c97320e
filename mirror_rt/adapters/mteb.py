"""Adapt encoders to MTEB: `MirrorEncoder` is a model for `mteb.evaluate`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mirror_rt.adapters.lazy import LazyEncoder, TextEncoder
from mirror_rt.bundle.hub import is_hub_name
from mirror_rt.bundle.identity import digest_of
from mirror_rt.errors import importing
from mirror_rt.vectors.quantization import Embeddings

with importing("mteb", extra="mteb", purpose="mirror_rt.adapters.mteb"):
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction
    from mteb.types import PromptType

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata

logger = logging.getLogger("mirror_rt")


class MirrorEncoder(AbsEncoder):
    """MTEB's `EncoderProtocol`, also usable as the `loader` of a `ModelMeta`.

    The prompt of a call is the first of these that exists: the prompt of the task and the side
    (`Banking77-query`), of the task, of the type of task and the side (`Retrieval-query`), of the
    type of task (`STS`), or of the side, as `encode_query` and `encode_document` find it.

    A blank text, of which benchmarks have some, gets a vector of zeros; a warning says how many.

    Args:
        model_name: path or hub name of a bundle, or an encoder.
        revision: revision of the hub name.
        device: `cpu` or `cuda`, passed on as `providers`; None for the best available.
        prompts: maps the names above to texts; None for the bundle's prompts.
        model_kwargs: further options of `Encoder.load`.
        encode_kwargs: options of `Encoder.encode`.

    Raises:
        MirrorError: the model cannot be loaded.
    """

    def __init__(
        self,
        model_name: str | Path | TextEncoder,
        revision: str | None = None,
        *,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(model_kwargs or {})
        options |= {} if revision is None else {"revision": revision}
        options |= {} if device is None else {"providers": device}
        self._lazy = LazyEncoder(model_name, options, encode_kwargs)
        self.model = self._lazy.load()
        if prompts is None:
            declared = getattr(self.model, "prompts", None)
            prompts = {} if declared is None else declared.by_name
        self.model_prompts = dict(prompts)
        self.mteb_model_meta = self._meta(revision)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Embeddings:
        """Encode the texts of a data loader: float32 [n, D] unless `precision` says otherwise.

        The inputs are batches, each with a list of texts under `text`. Their task and side
        (`prompt_type`: queries or documents) choose the prompt. Of the other arguments,
        `batch_size` and `precision` are those of `Encoder.encode`.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        options = {name: kwargs[name] for name in kwargs if name in ("batch_size", "precision")}
        options |= self._lazy.encode_kwargs
        name = self.get_prompt_name(task_metadata, prompt_type)
        if name is not None and "prompt" not in options and "prompt_name" not in options:
            options["prompt"] = self.model_prompts[name]
        encode = {
            None: self.model.encode,
            PromptType.query: self.model.encode_query,
            PromptType.document: self.model.encode_document,
        }[prompt_type]
        blank = np.array([not text.strip() for text in texts], dtype=bool)
        vectors = encode([text for text in texts if text.strip()], **options)
        if not blank.any():
            return vectors
        logger.warning("%s: %d blank texts get zeros", task_metadata.name, blank.sum())
        rows = np.zeros((len(texts), vectors.shape[1]), dtype=vectors.dtype)
        rows[~blank] = vectors
        return rows

    def _meta(self, revision: str | None) -> ModelMeta:
        """Return the metadata under which MTEB files results.

        The revision of a local model is its identity, by the contents of its files, so that results
        of another model at the same path are not mistaken for this one's.
        """
        name = self._lazy.name
        folder = Path(getattr(self.model, "folder", name))
        if revision is None and folder.is_dir():
            verified = self._lazy.model_kwargs.get("verify", True)
            revision = digest_of(folder, verified=verified)[:40]
        if Path(name).exists() or not is_hub_name(name):
            name = f"mirror-rt/{Path(name).absolute().name}"
        declared = getattr(self.model, "description", None)
        options = self._lazy.model_kwargs | self._lazy.encode_kwargs
        return ModelMeta.create_empty(
            {
                "name": name,
                "revision": revision,
                "embed_dim": self._lazy.dimension,
                "max_tokens": getattr(self.model, "max_length", None),
                "framework": ["ONNX"],
                "similarity_fn_name": ScoringFunction(
                    declared.similarity if declared else "cosine"
                ),
                "use_instructions": bool(self.model_prompts),
                "experiment_kwargs": {k: v for k, v in options.items() if k != "revision"} or None,
            }
        )
