"""What differs between the encoder families: one row each, for loading and for export."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "GENERIC", "Family", "family_of"]

# onnxruntime's operators that one encoder graph can hold, and how many of each a layer gives.
_EMBEDDINGS = {"EmbedLayerNormalization": 0}
_ATTENTION = {"Attention": 1}
_FEED_FORWARD = {"BiasGelu": 1, "SkipLayerNormalization": 2}


@dataclass(frozen=True, slots=True)
class Family:
    """One row.

    Attributes:
        token_types: the model embeds token_type_ids, so its graph takes them where the tokenizer
            gives them.
        attention_interface: its attention is plain softmax(QK)V behind transformers' attention
            interface, with no mask but that of padding.
        fused: fused operator -> how many a layer gives; 0 for one in the whole graph.
        pooler: the model has a head behind the hidden states that may be taken off.
        attention_output: last names of the layer that projects an attention's heads, side by side
            in its input; "" where that is not known.
    """

    token_types: bool = False
    attention_interface: bool = False
    fused: tuple[tuple[str, int], ...] = ()
    pooler: bool = False
    attention_output: str = ""

    def expected(self, layers: int) -> dict[str, int]:
        """Fused operators of a graph of so many layers, with a GELU between its dense layers."""
        return {name: layers * times or 1 for name, times in self.fused}


def _fused(*groups: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(pair for group in groups for pair in group.items())


_WHOLE = _fused(_ATTENTION, _FEED_FORWARD, _EMBEDDINGS)
_OUTPUT = "attention.output.dense"
_BERT = Family(
    token_types=True,
    attention_interface=True,
    fused=_WHOLE,
    pooler=True,
    attention_output=_OUTPUT,
)
_ROBERTA = Family(attention_interface=True, fused=_WHOLE, pooler=True, attention_output=_OUTPUT)

# The model_type of config.json -> what is particular about it.
FAMILIES = {
    "bert": _BERT,
    "albert": dataclasses.replace(_BERT, attention_output="attention.dense"),
    "electra": dataclasses.replace(_BERT, pooler=False),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Family(
        attention_interface=True, fused=_WHOLE, attention_output="attention.out_lin"
    ),
    # Its relative positions bypass the interface: see mirror_export.graph.attention.
    "mpnet": Family(fused=_WHOLE, pooler=True, attention_output="attn.o"),
    # Disentangled attention has no fused operator.
    "deberta-v2": Family(token_types=True, fused=_fused(_FEED_FORWARD), attention_output=_OUTPUT),
    # Norms before the layers, gated GELU, rotary positions and local windows: nothing matches.
    "modernbert": Family(attention_output="attn.Wo"),
}

# Whatever else AutoModel gives: its own attention, and its head left where it is.
GENERIC = Family()


def family_of(model: Any) -> Family:
    """The row of a transformers model; `GENERIC` where there is none, or the code is not theirs."""
    if not type(model).__module__.startswith("transformers.models."):
        return GENERIC
    return FAMILIES.get(model.config.model_type, GENERIC)
