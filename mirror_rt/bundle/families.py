"""The differences between encoder families, one table row for each, for loading and for export.

ONNX files, the exporter and the tuning of models read the same rows.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Fused operators of onnxruntime in an encoder graph and their number per layer (0: one per graph).
_EMBEDDINGS = {"EmbedLayerNormalization": 0}
_ATTENTION = {"Attention": 1}
_FEED_FORWARD = {"BiasGelu": 1, "SkipLayerNormalization": 2}
_PARTS = ("query", "key", "value")


@dataclass(frozen=True, slots=True)
class Classifier:
    """The layers of a family's `...ForSequenceClassification` behind its token vectors.

    Attributes:
        dense: module name of the first linear layer; "" for none.
        activation: name of the activation behind it in transformers, or the field of config.json
            that holds the name.
        out: module name of the last linear layer, which gives the logits.
        norm: module name of a layer normalisation behind the activation; "" for none.
        pooling: pooling of the token vectors, or the field of config.json that holds its name.
        usual_pooling: where config.json does not say it.
        biased: whether the layers have biases, whatever config.json says.
    """

    dense: str
    activation: str
    out: str = "classifier"
    norm: str = ""
    pooling: str = "cls"
    usual_pooling: str = "cls"
    biased: bool = True


@dataclass(frozen=True, slots=True)
class Tensors:
    """The names that a family's checkpoints give to tensors and sizes.

    Names of tensors are without the prefix of the family, and without `.weight` and `.bias`; ""
    stands for a tensor that the family lacks.

    Attributes:
        prefix: stands before all names where the model has a head.
        words, positions, types, norm: of the embeddings; without a norm of their own, the first
            layer adds to the embeddings as they are before its norm.
        projection: from the embeddings to the layers; left out where their widths are equal.
        layer: stands before the names of a layer, with the number of its group, and of the layer
            in that group.
        inner: the first product of the feed-forward part; of a gated one, the activated half first.
        first_norm: of a layer that normalises its input: the norm before its attention.
        last_norm: of such a family: the norm behind all layers.
        query_norm, key_norm: of the heads.
        attention_after, out_after: norms of the outputs of a layer's halves, before they are added.
        relative: the bias of the scores by distance.
        distances: vectors of distances, times which queries and keys are added to the scores, and
            their norm; empty for none.
        plain: field of config.json -> its values with which the model is computed, beside those
            that all families have.
        biased: the fields above whose matrices have biases, and `norms` where norms have them.
        gated: whether a second product multiplies the activated one.
        centred: whether norms take the mean off.
        causal: whether tokens attend to none behind them, unless config.json says otherwise.
        both_ways: field of config.json by which a causal family's tokens do, beside `is_causal`.
        grouped: whether config.json has the size of heads, and the number of those of keys.
        scaled: whether words, norms and scores are scaled as by Gemma.
        rotations: field of config.json with the base of rotary frequencies, and its usual value,
            of layers with `full_attention` and with `sliding_attention`; empty for no rotation.
        neighbours: whether neighbouring numbers rotate together, by angles in float64, and not
            each with the one half a head further.
        window, usual_window: field of config.json with the tokens of a window.
        one_side: whether a causal family has half of these tokens in a window.
        full_every: which layers attend to all tokens, where no `layer_types` say it: those whose
            number and the last value are a multiple of the field of config.json, or its usual
            value; 0 for none.
        renamed: parts of names, as published checkpoints have them, and as transformers has; names
            joined by + are the equal parts of one tensor.
        layers, heads: fields of config.json that hold their numbers.
        activation, epsilon: fields of config.json, and their values where it does not say them.
    """

    prefix: str
    words: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    types: str = "embeddings.token_type_embeddings"
    norm: str = "embeddings.LayerNorm"
    projection: str = ""
    layer: str = "encoder.layer.{}."
    query_key_value: tuple[str, ...] = tuple(f"attention.self.{x}" for x in _PARTS)
    attention_out: tuple[str, ...] = ("attention.output.dense",)
    attention_norm: str = "attention.output.LayerNorm"
    inner: tuple[str, ...] = ("intermediate.dense",)
    out: tuple[str, ...] = ("output.dense",)
    out_norm: str = "output.LayerNorm"
    first_norm: str = ""
    last_norm: str = ""
    query_norm: str = ""
    key_norm: str = ""
    attention_after: str = ""
    out_after: str = ""
    relative: str = ""
    distances: tuple[str, ...] = ()
    plain: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    biased: tuple[str, ...] = ("norms", "query_key_value", "attention_out", "inner", "out")
    gated: bool = False
    centred: bool = True
    causal: bool = False
    both_ways: str = ""
    grouped: bool = False
    scaled: bool = False
    rotations: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    neighbours: bool = False
    window: str = ""
    usual_window: int | None = None
    one_side: bool = False
    full_every: tuple[str, int, int] = ("", 1, 0)
    renamed: tuple[tuple[str, str], ...] = ()
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    activation: tuple[str, str] = ("hidden_act", "gelu")
    epsilon: tuple[str, float] = ("layer_norm_eps", 1e-12)


@dataclass(frozen=True, slots=True)
class Family:
    """The properties of one encoder family.

    Attributes:
        attention_interface: whether its attention is plain softmax(QK)V behind transformers'
            attention interface, with no mask but the padding mask, and local windows where
            mirror_export.graph.attention knows them.
        fused: the number of each fused operator per layer; 0 for one in the whole graph.
        pooler: whether the model has a head after the hidden states that can be removed.
        attention_output: end of the module name of the attention's output projection, whose input
            holds the heads side by side; "" where it is not known.
        classifier: the head of its sequence classification; None where it is not known.
        tensors: the names in its checkpoints; None where the native engine does not compute it.
    """

    attention_interface: bool = False
    fused: Mapping[str, int] = field(default_factory=dict)
    pooler: bool = False
    attention_output: str = ""
    classifier: Classifier | None = None
    tensors: Tensors | None = None

    def expected(self, layers: int) -> dict[str, int]:
        """Return the number of each fused operator in a graph of `layers` layers with GELU."""
        return {name: layers * times or 1 for name, times in self.fused.items()}


_WHOLE = _ATTENTION | _FEED_FORWARD | _EMBEDDINGS
_OUTPUT = "attention.output.dense"
_BERT = Family(
    attention_interface=True,
    fused=_WHOLE,
    pooler=True,
    attention_output=_OUTPUT,
    classifier=Classifier("bert.pooler.dense", "tanh"),
    tensors=Tensors("bert"),
)
_IN_PARTS = Classifier("classifier.dense", "tanh", out="classifier.out_proj")
_ROBERTA = dataclasses.replace(_BERT, classifier=_IN_PARTS, tensors=Tensors("roberta"))

_MODERN_HEAD = Classifier(
    "head.dense",
    "classifier_activation",
    norm="head.norm",
    pooling="classifier_pooling",
    biased=False,
)
_MODERN = Tensors(
    "model",
    words="embeddings.tok_embeddings",
    positions="",
    types="",
    norm="embeddings.norm",
    layer="layers.{}.",
    query_key_value=("attn.Wqkv",),
    attention_out=("attn.Wo",),
    attention_norm="mlp_norm",
    inner=("mlp.Wi",),
    out=("mlp.Wo",),
    first_norm="attn_norm",
    last_norm="final_norm",
    biased=(),
    gated=True,
    rotations={
        "full_attention": ("global_rope_theta", 160_000.0),
        "sliding_attention": ("local_rope_theta", 10_000.0),
    },
    window="local_attention",
    usual_window=128,
    full_every=("global_attn_every_n_layers", 3, 0),
    activation=("hidden_activation", "gelu"),
    epsilon=("norm_eps", 1e-5),
)

# The family of each model_type of config.json.
FAMILIES = {
    "bert": _BERT,
    "ernie": dataclasses.replace(
        _BERT, classifier=Classifier("ernie.pooler.dense", "tanh"), tensors=Tensors("ernie")
    ),
    "albert": dataclasses.replace(
        _BERT,
        attention_output="attention.dense",
        classifier=Classifier("albert.pooler", "tanh"),
        tensors=Tensors(
            "albert",
            projection="encoder.embedding_hidden_mapping_in",
            layer="encoder.albert_layer_groups.{}.albert_layers.{}.",
            query_key_value=tuple(f"attention.{x}" for x in _PARTS),
            attention_out=("attention.dense",),
            attention_norm="attention.LayerNorm",
            inner=("ffn",),
            out=("ffn_output",),
            out_norm="full_layer_layer_norm",
            activation=("hidden_act", "gelu_new"),
        ),
    ),
    "electra": dataclasses.replace(
        _BERT,
        pooler=False,
        classifier=dataclasses.replace(_IN_PARTS, activation="gelu"),
        tensors=Tensors("electra", projection="embeddings_project"),
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": dataclasses.replace(_ROBERTA, tensors=Tensors("data2vec_text")),
    "distilbert": Family(
        attention_interface=True,
        fused=_WHOLE,
        attention_output="attention.out_lin",
        classifier=Classifier("pre_classifier", "relu"),
        tensors=Tensors(
            "distilbert",
            types="",
            layer="transformer.layer.{}.",
            query_key_value=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            attention_out=("attention.out_lin",),
            attention_norm="sa_layer_norm",
            inner=("ffn.lin1",),
            out=("ffn.lin2",),
            out_norm="output_layer_norm",
            layers="n_layers",
            heads="n_heads",
            activation=("activation", "gelu"),
        ),
    ),
    # Its relative positions bypass the interface: see mirror_export.graph.attention.
    "mpnet": Family(
        fused=_WHOLE,
        pooler=True,
        attention_output="attn.o",
        classifier=_IN_PARTS,
        tensors=Tensors(
            "mpnet",
            types="",
            query_key_value=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            attention_out=("attention.attn.o",),
            attention_norm="attention.LayerNorm",
            relative="encoder.relative_attention_bias",
        ),
    ),
    "roformer": Family(
        fused=_FEED_FORWARD | _EMBEDDINGS,
        attention_output=_OUTPUT,
        classifier=Classifier("classifier.dense", "hidden_act", out="classifier.out_proj"),
        tensors=Tensors(
            "roformer",
            positions="",
            projection="embeddings_project",
            rotations={"full_attention": ("", 10_000.0)},
            neighbours=True,
        ),
    ),
    # Disentangled attention has no fused operator.
    "deberta-v2": Family(
        fused=_FEED_FORWARD,
        attention_output=_OUTPUT,
        classifier=Classifier("pooler.dense", "pooler_hidden_act"),
        tensors=Tensors(
            "deberta",
            positions="",
            query_key_value=tuple(f"attention.self.{x}_proj" for x in _PARTS),
            distances=("encoder.rel_embeddings", "encoder.LayerNorm"),
            plain={
                "relative_attention": (True,),
                "share_att_key": (True,),
                "position_biased_input": (False,),
                "norm_rel_ebd": ("layer_norm",),
                "pos_att_type": ("c2p|p2c", "p2c|c2p", ["c2p", "p2c"], ["p2c", "c2p"]),
                "conv_kernel_size": (0, None),
            },
            epsilon=("layer_norm_eps", 1e-7),
        ),
    ),
    # Its norms come before the layers and its GELU is gated, for which there is no fused operator.
    "modernbert": Family(
        attention_interface=True,
        fused={"MultiHeadAttention": 1, "RotaryEmbedding": 2},
        attention_output="attn.Wo",
        classifier=_MODERN_HEAD,
        tensors=_MODERN,
    ),
}

_PROJECTIONS = tuple(f"self_attn.{x}_proj" for x in "qkv")
_GATED = ("mlp.gate_proj", "mlp.up_proj")
# One layer on the vector of the last token.
_SCORE = Classifier("", "identity", out="score", pooling="lasttoken", biased=False)
# Encoders with rotary positions, and norms behind the halves of layers.
_ROTARY = Tensors(
    "nomic_bert",
    positions="",
    layer="layers.{}.",
    query_key_value=_PROJECTIONS,
    attention_out=("self_attn.o_proj",),
    attention_norm="post_attention_layernorm",
    inner=_GATED,
    out=("mlp.down_proj",),
    out_norm="post_mlp_layernorm",
    plain={"moe_every_n_layers": (0, None)},  # no mixtures of experts
    biased=("norms",),
    gated=True,
    rotations={"full_attention": ("rope_theta", 1000.0)},
    activation=("hidden_act", "silu"),
    renamed=(
        ("encoder.layers.", "layers."),
        ("emb_ln", "embeddings.LayerNorm"),
        ("attn.Wqkv", "+".join(_PROJECTIONS)),
        ("attn.out_proj", "self_attn.o_proj"),
        ("mlp.fc11", "mlp.up_proj"),
        ("mlp.fc12", "mlp.gate_proj"),
        ("mlp.fc2", "mlp.down_proj"),
        ("norm1", "post_attention_layernorm"),
        ("norm2", "post_mlp_layernorm"),
    ),
)
# Decoders like Llama, whose norms are before the halves of layers.
_DECODER = Tensors(
    "model",
    words="embed_tokens",
    positions="",
    types="",
    norm="",
    layer="layers.{}.",
    query_key_value=_PROJECTIONS,
    attention_out=("self_attn.o_proj",),
    attention_norm="post_attention_layernorm",
    inner=_GATED,
    out=("mlp.down_proj",),
    first_norm="input_layernorm",
    last_norm="norm",
    biased=(),
    gated=True,
    centred=False,
    causal=True,
    grouped=True,
    rotations={"full_attention": ("rope_theta", 10_000.0)},
    activation=("hidden_act", "silu"),
    epsilon=("rms_norm_eps", 1e-6),
)
FAMILIES |= {
    "modernbert-decoder": Family(
        classifier=dataclasses.replace(_MODERN_HEAD, pooling="lasttoken"),
        tensors=dataclasses.replace(
            _MODERN,
            query_key_value=tuple(f"attn.{x}_proj" for x in "qkv"),
            causal=True,
            one_side=True,
        ),
    ),
    "nomic_bert": Family(classifier=Classifier("nomic_bert.pooler.dense", "tanh"), tensors=_ROTARY),
    "gte": Family(
        classifier=Classifier("gte.pooler.dense", "tanh"),
        tensors=dataclasses.replace(
            _ROTARY,
            prefix="gte",
            biased=("norms", "query_key_value", "attention_out", "out"),
            rotations={"full_attention": ("rope_theta", 160_000.0)},
            activation=("hidden_act", "gelu"),
            renamed=(
                ("new.", ""),
                ("encoder.layer.", "layers."),
                ("attention.qkv_proj", "+".join(_PROJECTIONS)),
                ("attention.o_proj", "self_attn.o_proj"),
                ("mlp.up_gate_proj", "mlp.up_proj+mlp.gate_proj"),
                ("attn_ln", "post_attention_layernorm"),
                ("mlp_ln", "post_mlp_layernorm"),
            ),
        ),
    ),
    "qwen2": Family(
        classifier=_SCORE, tensors=dataclasses.replace(_DECODER, biased=("query_key_value",))
    ),
    "qwen3": Family(
        classifier=_SCORE,
        tensors=dataclasses.replace(
            _DECODER, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"
        ),
    ),
    "eurobert": Family(
        classifier=Classifier("dense", "gelu", pooling="classifier_pooling", usual_pooling="late"),
        tensors=dataclasses.replace(_DECODER, causal=False, epsilon=("rms_norm_eps", 1e-5)),
    ),
    "llama": Family(classifier=_SCORE, tensors=_DECODER),
    "mistral": Family(
        classifier=_SCORE,
        tensors=dataclasses.replace(
            _DECODER, window="sliding_window", usual_window=4096, full_every=("", 0, 0)
        ),
    ),
    "gemma3_text": Family(
        classifier=_SCORE,
        tensors=dataclasses.replace(
            _DECODER,
            attention_norm="pre_feedforward_layernorm",
            query_norm="self_attn.q_norm",
            key_norm="self_attn.k_norm",
            attention_after="post_attention_layernorm",
            out_after="post_feedforward_layernorm",
            both_ways="use_bidirectional_attention",
            scaled=True,
            rotations={
                "full_attention": ("rope_theta", 1_000_000.0),
                "sliding_attention": ("rope_local_base_freq", 10_000.0),
            },
            window="sliding_window",
            usual_window=4096,
            full_every=("sliding_window_pattern", 6, 1),
            activation=("hidden_activation", "gelu_pytorch_tanh"),
        ),
    ),
    "jina_embeddings_v3": Family(
        classifier=_IN_PARTS,
        tensors=dataclasses.replace(
            _ROTARY,
            prefix="roberta",
            inner=("mlp.fc1",),
            out=("mlp.fc2",),
            biased=Tensors("").biased,
            gated=False,
            rotations={"full_attention": ("rope_theta", 20_000.0)},
            activation=("hidden_act", "gelu"),
            epsilon=("layer_norm_eps", 1e-5),
            renamed=(
                ("encoder.layers.", "layers."),
                ("emb_ln", "embeddings.LayerNorm"),
                ("mixer.Wqkv", "+".join(_PROJECTIONS)),
                ("mixer.out_proj", "self_attn.o_proj"),
                ("norm1", "post_attention_layernorm"),
                ("norm2", "post_mlp_layernorm"),
            ),
        ),
    ),
    "megatron-bert": Family(
        classifier=Classifier("bert.pooler.dense", "tanh"),
        tensors=Tensors(
            "bert",
            norm="",
            attention_norm="ln",
            first_norm="attention.ln",
            last_norm="encoder.ln",
        ),
    ),
    "xlm-roberta-xl": Family(
        classifier=_IN_PARTS,
        tensors=Tensors(
            "roberta",
            norm="",
            attention_norm="LayerNorm",
            first_norm="attention.self_attn_layer_norm",
            last_norm="encoder.LayerNorm",
            epsilon=("layer_norm_eps", 1e-5),
        ),
    ),
}

# Families that number positions from padding_idx + 1 on, so that texts have fewer tokens than the
# table of positions has rows; in transformers they call `create_position_ids_from_input_ids`.
SHIFTED = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
# The names that families give to the length of a token vector, in the order of preference.
WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")

# For any other model of AutoModel: its attention is exported as it is, and its head is kept.
GENERIC = Family()


def family_of(model: Any) -> Family:
    """Return the family of a model; `GENERIC` if it is unknown or its code is not transformers'."""
    if not type(model).__module__.startswith("transformers.models."):
        return GENERIC
    return FAMILIES.get(model.config.model_type, GENERIC)


def is_causal(config: Mapping[str, Any], tensors: Tensors | None) -> bool:
    """Return whether the tokens of a model attend to none behind them, as in transformers."""
    if tensors is None or not tensors.causal or config.get(tensors.both_ways):
        return False
    return bool(config.get("is_causal", True))


def takes_token_types(model: Any) -> bool:
    """Return whether a model of transformers tells tokens of several types apart."""
    types = getattr(model.config, "type_vocab_size", 0) or 0
    return types > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


def positions(config: Mapping[str, Any], declared: int | None = None) -> int | None:
    """Return the most tokens of a text that config.json has positions for; None for any number.

    Positions that are relative, or that rotate, have no end. Of these there are as many as the
    model was trained with, or as are `declared`, if those are more.
    """
    rows, padding = (config.get(name) for name in ("max_position_embeddings", "pad_token_id"))
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        return None
    kind = str(config.get("model_type"))
    names = FAMILIES.get(kind, GENERIC).tensors
    rotates = names is not None and names.rotations and not names.neighbours
    relative = config.get("position_biased_input") is False  # of DeBERTa
    if relative or rotates or config.get("rope_parameters"):
        return max(rows, declared or 0)
    return rows - (padding if isinstance(padding, int) else 1) - 1 if kind in SHIFTED else rows
