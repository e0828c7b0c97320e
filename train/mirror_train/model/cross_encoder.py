"""A cross-encoder in PyTorch: a pair of texts goes through a model as one, and logits come out."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from mirror_rt.errors import ModelError
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens
from mirror_train.compute.precision import resolve_device
from mirror_train.model.forward import Forward, in_order
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained, quiet_transformers

Rows = npt.NDArray[np.int64]
_BATCH = 64  # pairs that are scored at once
# What sentence-transformers applies to the logits: torch's classes by their full names.
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_IDENTITY = "torch.nn.modules.linear.Identity"


@dataclass(frozen=True)
class PairTokens(RaggedTokens):
    """Token ids of n pairs, of which `second`, int64 [n], says where the second text begins."""

    second: Rows

    def pad(self, rows: Rows | None, *, pad_id: int, length: int | None = None) -> PaddedBatch:
        """Right-pad as `RaggedTokens.pad`, with token types 1 from the second text on."""
        batch = RaggedTokens.pad(self, rows, pad_id=pad_id, length=length)
        begin = (self.second if rows is None else self.second[rows])[:, None]
        types = (np.arange(batch.input_ids.shape[1]) >= begin) * batch.attention_mask
        return batch._replace(token_type_ids=types)


class PairTokenizer:
    """Tokenise pairs of texts; the longer one is cut first, to `max_length` tokens of a pair."""

    def __init__(self, base: Pretrained, max_length: int) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_str(
            base.hf_tokenizer.backend_tokenizer.to_str()
        )
        self._tokenizer.enable_truncation(max_length, strategy="longest_first")

    def __call__(self, texts: Sequence[str]) -> PairTokens:
        """Return the tokens of 2n texts, n first texts and then their n partners."""
        n = len(texts) // 2
        found = self._tokenizer.encode_batch(list(zip(texts[:n], texts[n:], strict=True)))
        tokens = RaggedTokens.from_lists([one.ids for one in found])
        second = np.array([len(one.ids) - sum(one.type_ids) for one in found], np.int64)
        return PairTokens(tokens.ids, tokens.offsets, second)


class LogitHead(Head):
    """The head of a cross-encoder, whose logits [B, C] stand in the place of text vectors."""

    def __init__(self, base: Pretrained) -> None:
        super().__init__(["cls"], normalize=False)
        name = "token_type_ids"
        known = inspect.signature(base.model.forward).parameters
        if name in known and name in base.hf_tokenizer.model_input_names:
            self.inputs = (*Head.inputs, name)

    def embed(self, model: nn.Module, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Run a sequence classifier; return its logits [B, C], twice."""
        logits: Tensor = model(**inputs).logits
        return logits, logits


def as_classifier(base: Pretrained, labels: Sequence[str] | None, *, seed: int = 0) -> Pretrained:
    """Return a model with a head for pairs on the weights of its folder.

    It has one logit, or one for each of `labels`. A head of that size which the folder has is kept;
    what it lacks is drawn by the seed. With None for the labels, the head must be there.
    """
    config = copy.deepcopy(base.model.config)
    if labels is not None:
        names = dict(enumerate(labels or ["LABEL_0"]))
        config.id2label, config.label2id = names, {name: i for i, name in names.items()}
        config.sentence_transformers = {"activation_fn": _IDENTITY if labels else _SIGMOID}
    code = type(base.model).__module__.startswith("transformers_modules.")
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model, report = AutoModelForSequenceClassification.from_pretrained(
                base.model_folder,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=code,
            )
        except (ValueError, RuntimeError) as error:  # a family without one; a head of another size
            reason = " ".join(str(error).split()[:30])
            raise ModelError(f"{base.name} cannot become a cross-encoder: {reason}") from error
    if labels is None and report["missing_keys"]:
        raise ModelError(f"{base.name} is no cross-encoder: its weights have no head for pairs")
    return dataclasses.replace(base, model=model.eval())


@dataclass(frozen=True, slots=True)
class TorchCrossEncoder:
    """The scores of a cross-encoder's current weights, which `forward` runs."""

    forward: Forward
    tokenize: PairTokenizer

    @classmethod
    def load(cls, name: str | Path, *, device: str = "auto", **options: Any) -> TorchCrossEncoder:
        """Load a folder or hub name; `options` are those of `load_pretrained`."""
        base, where = as_classifier(load_pretrained(name, **options), None), resolve_device(device)
        head = LogitHead(base)
        forward = Forward(base.model.to(where), head=head, pad_id=base.pad_id, device=where)
        return cls(forward, PairTokenizer(base, base.max_length))

    def logits(self, first: Sequence[str], second: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the logits of n pairs, float32 [n, C]."""
        self.forward.model.eval()
        tokens = self.tokenize([*first, *second])
        order = np.argsort(tokens.lengths, kind="stable")
        chunks = [order[i : i + _BATCH] for i in range(0, len(order), _BATCH)]
        with torch.inference_mode():
            found = in_order([self.forward.embed_chunk(tokens, rows) for rows in chunks], chunks)
        return np.asarray(found.float().cpu().numpy())

    def scores(self, first: Sequence[str], second: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the score of each pair, the sigmoid of its one logit, float64 [n]."""
        return 1 / (1 + np.exp(-self.logits(first, second)[:, 0].astype(np.float64)))
