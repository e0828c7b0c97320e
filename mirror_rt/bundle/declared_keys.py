"""The ledger of keys: the effect on vectors of each key in the files that describe a model.

A key is used, has no effect on vectors, or is refused. One that is not in the table is reported by
`mirror-rt info`, and refused where its name says that it could change a vector. Code gets the used
keys of a file alone, so no key can be read that the table does not name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mirror_rt.bundle.json_document import parse_json
from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.errors import BundleError
from mirror_rt.io.limits import DECLARED

# Keys of these names change what a library loads, whatever file they are in, but for these values.
_DECISIVE = re.compile(r"_k?w?args$|quanti[sz]|adapter|lora|auto_map")
_NEUTRAL: tuple[Any, ...] = (None, False, "", [], {})

USED, NO_EFFECT, REFUSED = "used", "without effect", "refused"


class Key(NamedTuple):
    """The effect of a key on vectors: its use, and its purpose or the reason why it is not used."""

    use: str
    why: str


def _keys(use: str, why: str, *names: str) -> dict[str, Key]:
    return dict.fromkeys(names, Key(use, why))


_used, _idle, _refused = (partial(_keys, use) for use in (USED, NO_EFFECT, REFUSED))
_LOADING = ("trust_remote_code", "attn_implementation", "add_pooling_layer", "use_fast",
            "low_cpu_mem_usage", "device_map", "local_files_only", "use_cache",
            "output_attentions", "output_hidden_states", "chat_template")  # fmt: skip
# The keys of the older layout of a Pooling, in the order in which it joins several poolings.
POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_TOKENS = ("pad_token", "unk_token", "cls_token", "sep_token", "bos_token", "eos_token")
_ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args",
              "config_kwargs", "processing_kwargs")  # fmt: skip
_OF_SIDES = (
    "query_prefix",
    "document_prefix",
    "query_length",
    "document_length",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "skiplist_words",
)
_OF_GRAPH = "the architecture, which is in the weights and the graph"

LEDGER: dict[str, dict[str, Key]] = {
    "modules.json": {
        **_used("the module, and its folder", "type", "path"),
        **_idle("the order is that of the list", "idx", "name"),
        **_idle("options that a caller of encode may give", "kwargs"),
    },
    "router_config.json": {
        **_used("the modules of queries and of documents", "types", "structure"),
        **_used("the way of texts that are neither", "parameters"),
    },
    "config_sentence_transformers.json": {
        **_used("the prompts", "prompts", "default_prompt_name"),
        **_used("the function that vectors are compared with", "similarity_fn_name"),
        **_used("dimensions that are kept", "truncate_dim"),
        **_used("whether it encodes texts, weighs their words or scores pairs", "model_type"),
        **_used("the function that makes scores of the logits of pairs", "activation_fn"),
        **_used("how the queries and documents of late interaction become tokens", *_OF_SIDES),
        **_used("most words of a sparse vector", "max_active_dims"),
        **_idle("the versions that wrote it", "__version__"),
        **_idle("layers that stay in float32, as all do here", "keep_in_fp32_modules"),
    },
    "sentence_bert_config.json": {
        **_used("most tokens of a text", "max_seq_length"),
        **_used("texts are lower-cased first", "do_lower_case"),
        **_used("the treatment of texts, and the output of the model that is taken",
                "modality_config"),
        **_idle("found by the files beside it", "transformer_task", "module_output_name"),
        **_idle("padding is left out, which changes no vector", "unpad_inputs"),
        **_refused("further arguments of its libraries are not applied", *_ARGUMENTS),
        **_refused("limits of tokens for queries and documents are not applied", "query_length",
                   "document_length", "query_expansion"),
    },
    "Pooling": {
        **_used("how token vectors become one", "pooling_mode", *POOLING_FLAGS),
        **_idle("the length of a token vector, which the model has", "word_embedding_dimension",
                "embedding_dimension"),
        **_used("whether the prompt's tokens are pooled, too", "include_prompt"),
    },
    "Dense": {
        **_used("the sizes of a linear layer", "in_features", "out_features"),
        **_used("whether it has a bias", "bias"),
        **_used("the function that is applied to its output", "activation_function"),
        **_used("whether its input is added to its output", "use_residual"),
        **_used("the vector that it maps, which must be that of the text", "module_input_name",
                "module_output_name"),
    },
    "MultiVectorMask": {
        **_used("the tokens that get no vector, and of which texts", "skiplist_words",
                "skiplist_tasks", "keep_only_token_ids"),
    },
    "artifact.metadata": {
        **_used("the tokens that mark queries and documents", "query_token_id", "doc_token_id"),
        **_used("most tokens of queries and documents", "query_maxlen", "doc_maxlen"),
        **_used("whether tokens attend to those of query expansion", "attend_to_mask_tokens"),
        **_used("whether punctuation gets no vector", "mask_punctuation"),
        **_used("the measure that compares vectors, which must be the cosine", "similarity"),
        "*": Key(NO_EFFECT, "a setting of training, or of an index"),
    },
    "LogitScore": {
        **_used("the tokens whose logits make a score", "true_token_id", "false_token_id"),
        **_idle("the logits of a language model", "module_input_name"),
    },
    "SpladePooling": {
        **_used("how the weights of tokens become one", "pooling_strategy"),
        **_used("how a logit becomes a weight", "activation_function"),
        **_idle("the number of words, which the model has", "embedding_dimension",
                "word_embedding_dimension"),
        **_idle("tokens that are computed at a time", "chunk_size"),
    },
    "SparseStaticEmbedding": {
        **_idle("whether it can be trained", "frozen"),
        **_refused("the weights of words are read from model.safetensors alone", "path"),
    },
    "Flow": {
        **_used("the sizes of a flow", "in_features", "blocks", "levels", "hidden_size"),
    },
    "config.json": {
        **_used("the family, whose row says how positions are numbered", "model_type"),
        **_used("the length of a token vector", "hidden_size", "dim", "d_model", "n_embd"),
        **_used("the same fields of the part for texts, of a model that takes images as well",
                "text_config"),
        **_used("the token to pad with", "pad_token_id"),
        **_used("most tokens of a text", "max_position_embeddings", "position_biased_input"),
        **_used("whether it encodes texts or scores pairs", "architectures"),
        **_used("the class of the tokenizer", "tokenizer_class"),
        **_used("whether the vectors of a static encoder have unit length", "normalize"),
        **_used("the code of a model, which is run on request alone; a graph has it", "auto_map"),
        **_used("the sizes of weights in safetensors", "num_hidden_layers", "n_layers",
                "num_attention_heads", "n_heads", "num_hidden_groups", "inner_group_num",
                "num_key_value_heads", "head_dim", "layer_norm_eps", "norm_eps", "rms_norm_eps",
                "hidden_act", "activation", "hidden_activation", "query_pre_attn_scalar"),
        **_used("the attention of each layer", "layer_types", "global_attn_every_n_layers",
                "local_attention", "rope_parameters", "rope_scaling", "global_rope_theta",
                "local_rope_theta", "rope_theta", "rope_local_base_freq", "sliding_window",
                "sliding_window_pattern", "use_sliding_window", "use_bidirectional_attention",
                "is_causal", "rotary_value", "attn_logit_softcapping", "position_embedding_type",
                "is_decoder", "relative_attention", "share_att_key", "norm_rel_ebd", "pos_att_type",
                "position_buckets", "max_relative_positions", "conv_kernel_size",
                "type_vocab_size"),
        **_used("the head of a cross-encoder", "id2label", "num_labels", "classifier_pooling",
                "classifier_activation", "pooler_hidden_act"),
        **_used("the function that makes scores of the logits of pairs", "sentence_transformers",
                "sbert_ce_default_activation_function"),
        **_used("biases, which not all engines add", "attention_bias", "mlp_bias"),
        **_used("mixtures of experts, which a graph alone computes", "moe_every_n_layers"),
        **_used("whether the words of a head are those of the embeddings", "tie_word_embeddings"),
        **_idle("layers of X-MOD, which are its own", "adapter_reduction_factor",
                "adapter_layer_norm", "adapter_reuse_layer_norm"),
        **_refused("quantised weights cannot be loaded: take the folder of the original model",
                   "quantization_config"),
        "*": Key(NO_EFFECT, _OF_GRAPH),
    },
    "tokenizer_config.json": {
        **_used("most tokens of a text, where no module says it", "model_max_length", "max_len"),
        **_used("the class that says which other keys count; those that change ids are refused of "
                "a class that is not known, where tokenizer.json says otherwise",
                "tokenizer_class"),
        **_used("special tokens around a text: refused if they are not those of tokenizer.json",
                "add_bos_token", "add_eos_token"),
        **_used("how texts are normalised and cut into words", "do_lower_case", "strip_accents",
                "tokenize_chinese_chars", "add_prefix_space", "keep_accents", "split_by_punct"),
        **_used("the side on which long texts are cut", "truncation_side"),
        **_used("whether the two texts of a pair are told apart", "model_input_names"),
        **_used("the mask token", "mask_token"),
        **_idle("rows are padded on the right, and padding is masked", "padding_side",
                "pad_token_type_id", "pad_to_multiple_of", "max_length", "stride",
                "truncation_strategy"),
        **_used("a special token, where vocab.txt is in the place of tokenizer.json", *_TOKENS,
                "added_tokens_decoder"),
        **_idle("its id is that of tokenizer.json", "additional_special_tokens",
                "extra_special_tokens", "model_specific_special_tokens"),
        **_idle("a setting of decoding", "clean_up_tokenization_spaces", "errors",
                "trim_offsets"),
        **_idle("a setting of tokenizers in Python", "do_basic_tokenize", "never_split",
                "sp_model_kwargs", "wordpieces_prefix", "clean_text", "use_fast", "legacy"),
        **_idle("where it came from", "name_or_path", "special_tokens_map_file", "backend",
                "tokenizer_file", "processor_class", "is_local", "local_files_only",
                "chat_template", "vocab_file", "verbose", "revision"),
        **_refused("code that comes with a model is run only on request", "auto_map"),
    },
}  # fmt: skip
# The same file in the folder of a late-interaction model.
LEDGER["sentence_bert_config.json of tokens"] = LEDGER["sentence_bert_config.json"] | _used(
    "how queries and documents become tokens", "query_length", "document_length", "query_expansion"
)


class DeclaredFile(NamedTuple):
    """The used keys of a file.

    Attributes:
        path: the file.
        values: the used keys with their values.
        refused: the refused keys, each with the reason.
        unknown: the keys that nobody knows, with their values.
        sizes: name -> the largest integer of that name, on whatever level.
    """

    path: Path
    values: dict[str, Any]
    refused: dict[str, str]
    unknown: dict[str, Any]
    sizes: dict[str, int]

    def text(self, key: str) -> str | None:
        """Return the value of a key as a string; None where there is none."""
        value = self.values.get(key)
        return None if value is None else str(value)


NOTHING = DeclaredFile(Path(), {}, {}, {}, {})


def read_declared(path: Path, kind: str = "") -> DeclaredFile:
    """Read a JSON object by the ledger's table for `kind`, by default for the name of the file.

    There are no values where there is no such file. Integers may be of any size, since others write
    10^30 where they mean that there is no limit.
    """
    values, table = read_object(path), LEDGER[kind or path.name]
    found = DeclaredFile(path, {}, {}, {}, _sizes(values))
    for name, value in values.items():
        decisive = _DECISIVE.search(name)
        key = table.get(name) or (None if decisive else table.get("*"))
        if key is None:
            found.unknown[name] = value
            key = Key(REFUSED if decisive else NO_EFFECT, "nothing is known of it")
        if key.use == USED:
            found.values[name] = value
        elif key.use == REFUSED and not _is_neutral(value):
            found.refused[name] = f"{path} declares {name}: {key.why}"
    return found


def _sizes(values: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in values.items():
        inner = _sizes(value) if isinstance(value, dict) else {}
        inner |= {name: value} if isinstance(value, int) else {}
        found |= {key: max(size, found.get(key, size)) for key, size in inner.items()}
    return found


def _is_neutral(value: Any) -> bool:
    """Return whether a value has no effect: an empty one, or arguments that change no vector."""
    if isinstance(value, Mapping):
        return all(name in _LOADING or part in (None, "", [], {}) for name, part in value.items())
    return any(value == neutral and type(value) is type(neutral) for neutral in _NEUTRAL)


def refuse(files: Collection[DeclaredFile], allowed: Collection[str] = ()) -> None:
    """Raise BundleError for the first refused key of the files that is not among `allowed`."""
    for file in files:
        for name, reason in file.refused.items():
            if name not in allowed:
                raise BundleError(reason)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object of others, with integers of any size; an empty one without the file."""
    if not path.exists():
        return {}
    values = parse_json(path, most=DECLARED, large=True)
    if not isinstance(values, dict):
        raise BundleError(f"{path} is damaged: it is {type(values).__name__}, expected an object")
    return values
