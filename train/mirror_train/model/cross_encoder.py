"""A cross-encoder in PyTorch: a pair of texts goes through a model as one, and logits come out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from mirror_rt.bundle.families import family_of
from mirror_rt.errors import ModelError
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.pairs import Pair, PairTokenizer
from mirror_train.compute.precision import resolve_device
from mirror_train.model.forward import Forward, in_order
from mirror_train.model.model_checks import as_model_error
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained, quiet_transformers

_BATCH = 64  # pairs that are scored at once
# sentence-transformers applies these to the logits: torch's classes by their full names.
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_IDENTITY = "torch.nn.modules.linear.Identity"


class LogitHead(Head):
    """The head of a cross-encoder, whose logits [B, C] stand in the place of text vectors."""

    gives_text_vectors = False

    def __init__(self) -> None:
        super().__init__(["cls"], normalize=False)

    def embed(self, model: nn.Module, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Run a sequence classifier; return its logits [B, C], twice."""
        logits: Tensor = model(**inputs).logits
        return logits, logits


class PairTokens:
    """The tokens of pairs, of which at most `max_length` are kept: the longer text is cut first."""

    def __init__(self, base: Pretrained, max_length: int, *, copy: bool = True) -> None:
        self.tokenizer = PairTokenizer(
            base.hf_tokenizer.backend_tokenizer,
            max_length=max_length,
            pad_id=base.pad_id,
            copy=copy,
            left=base.cuts_left,
            types=base.gives_token_types,
        )
        row = family_of(base.model).classifier
        if row is not None and row.pooling == "lasttoken":
            with as_model_error():
                self.tokenizer.check_last(base.model.config.pad_token_id, base.folder)

    def __call__(self, texts: Sequence[str]) -> RaggedTokens:
        """Return the tokens of 2n texts, n first texts and then their n partners."""
        n = len(texts) // 2
        return self.tokenizer(list(map(Pair, texts[:n], texts[n:]))).tokens


def as_classifier(base: Pretrained, labels: Sequence[str], *, seed: int) -> Pretrained:
    """Return a model with a head for pairs on the weights of its folder.

    It has one logit, or one for each of `labels`. A head of that size which the folder has is kept;
    missing weights are drawn by the seed.
    """
    if family_of(base.model).classifier is None:
        kind = base.model.config.model_type
        raise ModelError(f"{base.name}: no head for pairs is known for the family {kind}")
    config, names = copy.deepcopy(base.model.config), dict(enumerate(labels or ["LABEL_0"]))
    config.id2label, config.label2id = names, {name: i for i, name in names.items()}
    config.sentence_transformers = {"activation_fn": _IDENTITY if labels else _SIGMOID}
    if config.pad_token_id is None:
        config.pad_token_id = base.pad_id  # without which decoders find no last token in a batch
    if not base.description.is_classifier and getattr(config, "classifier_pooling", "") == "late":
        config.classifier_pooling = "mean"  # EuroBERT's own mean of logits runs in PyTorch alone
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = AutoModelForSequenceClassification.from_pretrained(
                base.model_folder, config=config, dtype=torch.float32
            )
        except RuntimeError as error:  # a head of another size
            reason = " ".join(str(error).split()[:30])
            raise ModelError(f"{base.name} cannot become a cross-encoder: {reason}") from error
    return dataclasses.replace(base, model=model.eval())


@dataclass(frozen=True, slots=True)
class TorchCrossEncoder:
    """The scores of a cross-encoder's current weights, which `forward` runs."""

    forward: Forward
    tokenize: PairTokens

    @classmethod
    def load(cls, name: str | Path, *, device: str = "auto", **options: Any) -> TorchCrossEncoder:
        """Load a folder or hub name; `options` are those of `load_pretrained`."""
        base, where = load_pretrained(name, classifier=True, **options), resolve_device(device)
        if base.classifier is None:
            raise ModelError(f"{name} is no cross-encoder: it has no head for pairs")
        model = base.classifier.to(where)
        forward = Forward(model, head=LogitHead(), pad_id=base.pad_id, device=where)
        return cls(forward, PairTokens(base, base.max_length))

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
        logits = self.logits(first, second).astype(np.float64)
        if logits.shape[1] != 1:
            raise ModelError(
                f"a cross-encoder with one logit gives scores, this one has {logits.shape[1]}"
            )
        return 1 / (1 + np.exp(-logits[:, 0]))
