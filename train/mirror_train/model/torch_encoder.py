"""Run a Hugging Face model as an encoder in PyTorch, for training and for parity checks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.errors import ConfigError
from mirror_rt.inference.pooled_model import PooledModel
from mirror_rt.pipeline.pipeline import Pipeline, Vectors
from mirror_rt.tokens.batching import CPU_RUN_COST, GPU_RUN_COST
from mirror_rt.tokens.padding import PaddedBatch
from mirror_train.compute.precision import resolve_device
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.forward import embed_batch
from mirror_train.model.model_folder import DEFAULT_MODEL
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained


class TorchEncoder(BatchEncoder):
    """An encoder with the `encode` of a bundle, computed by PyTorch in float32.

    Args:
        pretrained: the model and its tokenizer.
        head: maps token vectors to a text vector, and says whether it is normalised by default;
            None for the one that the model's folder declares, else the mean.
        max_length: maximum number of tokens of a text; None for the limit of the model.
        pad_to: pad and cut every text to this many tokens, for `mean-with-padding`; None for not.
        device: where to compute; the model is moved there. None for the CPU.
        copy_tokenizer: work on a copy, so that the tokenizer of `pretrained` gets no limit and can
            still be saved.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        *,
        head: Head | None = None,
        max_length: int | None = None,
        pad_to: int | None = None,
        device: torch.device | None = None,
        copy_tokenizer: bool = True,
    ) -> None:
        self.pretrained = pretrained
        self.device = device or torch.device("cpu")
        self.head = (head or declared_head(pretrained.description) or Head(["mean"])).to(
            self.device
        )
        limit = pad_to or max_length or pretrained.max_length
        pipeline = Pipeline(
            pretrained.text_tokenizer(limit, copy=copy_tokenizer),
            TorchModel(
                pretrained.model,
                self.head,
                dimension=self.head.dimension(pretrained.dimension),
                device=self.device,
            ),
            pad_to=pad_to,
            normalize=self.head.normalize,
        )
        super().__init__(pipeline, mask_token=pretrained.mask_token)

    @classmethod
    def load(
        cls,
        name: str | Path = DEFAULT_MODEL,
        *,
        pooling: Pooling | Literal["auto"] = "auto",
        pad_to: int | None = None,
        revision: str | None = None,
        offline: bool = False,
        trust_remote_code: bool = False,
        device: str = "auto",
    ) -> TorchEncoder:
        """Load a model folder or hub name.

        Args:
            name: folder, hub name, or the embedded default.
            pooling: `auto` takes the pooling that the folder declares, else `mean`, which suits an
                untuned masked language model best (EMNLP 2021, footnote 5).
            pad_to: number of tokens that `mean-with-padding` pads and cuts every text to; None for
                that of a folder that was tuned with it.
            revision: branch, tag or commit on the hub.
            offline: never ask the network.
            trust_remote_code: run code that comes with the model.
            device: auto, cpu or cuda.

        Raises:
            ModelError: the model cannot be loaded.
            ConfigError: `mean-with-padding` is to be taken without a length.
        """
        pretrained = load_pretrained(
            name, revision=revision, offline=offline, trust_remote_code=trust_remote_code
        )
        pad_to = pad_to or pretrained.description.pad_to
        if pooling == "mean-with-padding" and pad_to is None:
            raise ConfigError(
                f"{name} was not tuned with mean-with-padding: give the length to pad to, pad_to"
            )
        return cls(
            pretrained,
            head=None if pooling == "auto" else Head([pooling]),
            pad_to=pad_to if pooling in ("auto", "mean-with-padding") else None,
            device=resolve_device(device),
        )


class TorchModel(PooledModel):
    """A model of transformers and its head, put into evaluation mode before each batch."""

    def __init__(
        self, model: PreTrainedModel, head: Head, *, dimension: int, device: torch.device
    ) -> None:
        cost = CPU_RUN_COST if device.type == "cpu" else GPU_RUN_COST
        super().__init__(dimension, run_cost=cost)
        self._model, self._head, self._device = model.to(device), head, device

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: float32 [rows, D]."""
        self._model.eval()
        with torch.inference_mode():
            vectors = embed_batch(self._model, batch, head=self._head, device=self._device)
            if normalize:
                vectors = functional.normalize(vectors, dim=1)
        return np.asarray(vectors.float().cpu().numpy())
