"""Dropout in training: the rate of a model's own, and drophead, which drops attention heads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mirror_rt.bundle.families import FAMILIES, family_of
from mirror_rt.errors import ConfigError

# Dropout in heads that an encoder does not have, and layer dropout, which is another technique.
_NOT_FEATURE_DROPOUT = ("classifier_dropout", "summary_last_dropout", "layerdrop")


def set_dropout(config: Any, rate: float) -> None:
    """Set every dropout rate of a model configuration, before the model is built from it.

    A rate for all is that of EMNLP 2021, section 2.2 and Table 12.

    Setting the configuration also reaches the dropout inside fused attention, which has no module.
    """
    for name, value in config.to_dict().items():
        is_rate = isinstance(value, int | float) and not isinstance(value, bool)
        known = name.endswith(("dropout", "dropout_prob", "pdrop"))
        if is_rate and known and name not in _NOT_FEATURE_DROPOUT:
            setattr(config, name, rate)


@contextlib.contextmanager
def drophead(model: Any, rate: float) -> Iterator[None]:
    """Drop whole attention heads of a transformers encoder wherever it is in training mode.

    Mirror-BERT tries this (Zhou et al. 2020, "Scheduled DropHead") in place of dropout (EMNLP 2021,
    section 4.4 and Table 7).

    However the attention is computed (SDPA, eager, relative positions), its heads are joined by an
    output projection, so heads are dropped from the input of that projection. The heads to drop are
    drawn for every text and layer from torch's default generator of the device; with rate 0 nothing
    is drawn or changed. The model is restored when the block ends.
    A model of a family whose output projection is not known is refused with a ConfigError.
    """
    with contextlib.ExitStack() as hooks:
        if rate > 0:
            heads = int(model.config.num_attention_heads)

            def drop(module: torch.nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
                dropped = module.training
                return (drop_heads(inputs[0], heads=heads, rate=rate),) if dropped else None

            for projection in _output_projections(model, rate):
                hooks.callback(projection.register_forward_pre_hook(drop).remove)
        yield


def drop_heads(context: Tensor, *, heads: int, rate: float) -> Tensor:
    """Zero the output of random heads of `context` [B, L, heads * d], and scale up the others.

    Each head is dropped with the probability `rate`, drawn for each of the B texts. As in the
    authors' code, the scale is heads / (heads kept), so that the sum over the heads keeps its size
    in every text, not only on average. Where all heads would be dropped, all are kept; so the
    expected output of a head is its undropped output.
    """
    batch, length, width = context.shape
    kept = torch.rand(batch, heads, device=context.device) >= rate
    kept |= ~kept.any(dim=1, keepdim=True)
    scale = (kept * (heads / kept.sum(dim=1, keepdim=True))).to(context.dtype)
    by_head = context.reshape(batch, length, heads, width // heads)
    return (by_head * scale[:, None, :, None]).reshape(batch, length, width)


def _output_projections(model: Any, rate: float) -> list[torch.nn.Module]:
    """Return each attention's output projection; ALBERT has a single one that all layers share."""
    name = family_of(model).attention_output
    found = [module for path, module in model.named_modules() if name and path.endswith(name)]
    if not found:
        known = ", ".join(sorted(kind for kind, row in FAMILIES.items() if row.attention_output))
        raise ConfigError(
            f"drophead {rate}: where the attention heads of {model.config.model_type} are is not "
            f"known, only those of {known}: use --drophead 0"
        )
    return found
