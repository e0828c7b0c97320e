"""Make tiny models with the real code of each family, random weights and a small tokenizer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SENTENCES = [
    "The river runs slowly through the old town.",
    "A doctor and a physician met on the road.",
    "Children were playing football in the rain.",
    "Её дом стоит на берегу реки.",
    "人人生而自由，在尊严和权利上一律平等。",
    "Tous les êtres humains naissent libres et égaux.",
    "يولد جميع الناس أحرارًا",
    "word",
]

# How transformers' Qwen2Tokenizer splits words, whatever the file of the tokenizer says.
PRETOKENIZE_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Special tokens in the order of their ids: (name in transformers, token).
BERT_TOKENS = [("pad", "[PAD]"), ("unk", "[UNK]"), ("cls", "[CLS]"), ("sep", "[SEP]"),
               ("mask", "[MASK]")]  # fmt: skip
ROBERTA_TOKENS = [("cls", "<s>"), ("pad", "<pad>"), ("sep", "</s>"), ("unk", "<unk>"),
                  ("mask", "<mask>")]  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A tiny model of one family: its tokenizer, and additional values of its configuration."""

    pieces: str = "wordpiece"
    tokens: list[tuple[str, str]] = field(default_factory=lambda: BERT_TOKENS)
    pooling: str = "mean"
    types: bool = True  # whether the tokenizer gives token_type_ids
    config: dict[str, object] = field(default_factory=dict)


# RoBERTa uses only 128 of its 130 positions, as it numbers them from padding_idx + 1 = 2.
_ROBERTA = {"max_position_embeddings": 130, "type_vocab_size": 1, "pad_token_id": 1,
            "bos_token_id": 0, "eos_token_id": 2}  # fmt: skip
TINY = {
    "bert": Tiny(),
    "roberta": Tiny("bpe", ROBERTA_TOKENS, "cls", types=False, config=_ROBERTA),
    "xlm-roberta": Tiny("unigram", ROBERTA_TOKENS, types=False, config=_ROBERTA),
    "camembert": Tiny("unigram", ROBERTA_TOKENS, "cls", types=False, config=_ROBERTA),
    "data2vec-text": Tiny("bpe", ROBERTA_TOKENS, types=False, config=_ROBERTA),
    "ernie": Tiny(),
    # Its published tokenizers declare types. Its feed-forward part has a name of its own.
    "distilbert": Tiny(types=True, config={"hidden_dim": 64}),
    "albert": Tiny("unigram", config={"embedding_size": 16}),
    "electra": Tiny(pooling="cls", config={"embedding_size": 16}),
    "mpnet": Tiny("wordpiece", ROBERTA_TOKENS, types=False, config=_ROBERTA),
    "deberta-v2": Tiny("unigram", config={
        "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
        "type_vocab_size": 0}),
    "modernbert": Tiny("bpe", pooling="cls", types=False, config={
        "local_attention": 16, "global_attn_every_n_layers": 2, "pad_token_id": 0,
        "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}),
    "roformer": Tiny(config={"embedding_size": 16}),
    # a family for which we have no row
    "rembert": Tiny(config={"input_embedding_size": 16, "output_embedding_size": 16}),
}  # fmt: skip
# Families that the native engine computes, whose graphs are as PyTorch writes them.
# With the token that transformers' Qwen2Tokenizer always has.
QWEN_TOKENS = [*BERT_TOKENS, ("eos", "<|endoftext|>")]
_DECODER = {"num_key_value_heads": 2, "head_dim": 12, "pad_token_id": 0, "bos_token_id": 2,
            "eos_token_id": 3}  # fmt: skip
UNFUSED = {
    "nomic_bert": Tiny(),
    "gte": Tiny("unigram", ROBERTA_TOKENS, "cls", types=False, config=_ROBERTA | {
        "max_position_embeddings": 128}),
    "jina_embeddings_v3": Tiny("unigram", ROBERTA_TOKENS, types=False, config=_ROBERTA | {
        "max_position_embeddings": 128}),
    "megatron-bert": Tiny(),
    "xlm-roberta-xl": Tiny("unigram", ROBERTA_TOKENS, types=False, config=_ROBERTA),
    "modernbert-decoder": Tiny("bpe", pooling="lasttoken", types=False, config={
        "local_attention": 16, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3,
        "bos_token_id": 2, "eos_token_id": 3}),
    "eurobert": Tiny("bpe", types=False, config=_DECODER | {
        "mask_token_id": 4, "classifier_pooling": "mean"}),
    "qwen2": Tiny("qwen", QWEN_TOKENS, pooling="lasttoken", types=False, config=_DECODER),
    "qwen3": Tiny("bpe", pooling="lasttoken", types=False, config=_DECODER),
    "llama": Tiny("bpe", types=False, config=_DECODER | {"is_causal": False}),
    "mistral": Tiny("bpe", pooling="lasttoken", types=False, config=_DECODER | {
        "sliding_window": 16}),
    "gemma3_text": Tiny("bpe", types=False, config=_DECODER | {
        "sliding_window": 16, "query_pre_attn_scalar": 20, "use_bidirectional_attention": True,
        "layer_types": ["sliding_attention", "full_attention"]}),
}  # fmt: skip


def _rank_pieces(words: Iterable[str], size: int, inner: str = "") -> list[tuple[str, float]]:
    """Return all characters, all words and the most frequent pieces, with log probabilities.

    The trainers of tokenizers for WordPiece and Unigram break ties by the order of a hash, which
    gives another vocabulary in every run, and now and then one that fails a test.
    """
    counts: Counter[str] = Counter()
    whole = Counter(words)
    for word, times in whole.items():
        for start in range(len(word)):
            for end in range(start + 1, len(word) + 1):
                piece = inner * (start > 0) + word[start:end]
                counts[piece] += times * (end - start)

    def rank(piece: str) -> tuple[bool, bool, int, str]:
        several = len(piece.removeprefix(inner)) > 1
        return several, piece not in whole, -counts[piece], piece

    total = counts.total()
    return [(piece, math.log(counts[piece] / total)) for piece in sorted(counts, key=rank)[:size]]


def make_tokenizer(tiny: Tiny, texts: list[str]):
    from tokenizers import (
        Regex,
        Tokenizer,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    special = [token for _, token in tiny.tokens]
    names = dict(tiny.tokens)
    size = 900
    if tiny.pieces == "wordpiece":
        normalizer = normalizers.BertNormalizer(lowercase=True)
        split = pre_tokenizers.BertPreTokenizer()
        words = (w for t in texts for w, _ in split.pre_tokenize_str(normalizer.normalize_str(t)))
        ranked = _rank_pieces(words, size - len(special), "##")
        pieces = [*special, *(piece for piece, _ in ranked)]
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk"]))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, split
    elif tiny.pieces in ("bpe", "qwen"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        if tiny.pieces == "qwen":
            tokenizer.normalizer = normalizers.NFC()
            split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
            bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=special,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(texts, trainer)
    else:
        split = pre_tokenizers.Metaspace()
        words = (word for text in texts for word, _ in split.pre_tokenize_str(text))
        ranked = _rank_pieces(words, size - len(special))
        scored = [*((token, 0.0) for token in special), *ranked]
        tokenizer = Tokenizer(models.Unigram(scored, unk_id=special.index(names["unk"])))
        tokenizer.pre_tokenizer = split
    first, last = names["cls"], names["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1"
        if tiny.types
        else f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, special.index(first)), (last, special.index(last))],
    )
    return tokenizer


def make_model(
    family: str,
    folder: Path,
    texts: list[str],
    *,
    seed: int = 0,
    labels: int | None = None,
    masked: bool = False,
    config: dict[str, object] | None = None,
) -> Path:
    """Write a tiny model with random weights, and its tokenizer.

    With `labels` it is a cross-encoder of so many, with `masked` a masked language model; `config`
    has more values of its configuration.
    """
    import torch
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    tiny = (TINY | UNFUSED)[family]
    tokenizer = make_tokenizer(tiny, texts + SENTENCES)
    size = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "initializer_range": 0.2,
        "max_position_embeddings": 128,
    }
    # Like many published files: a truncation and a padding that must not reach the runtime.
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16, pad_id=tokenizer.token_to_id(dict(tiny.tokens)["pad"]))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    hf_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=128,
        model_input_names=[name for name in inputs if tiny.types or "type" not in name],
        **{f"{name}_token": token for name, token in tiny.tokens},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        values = size | tiny.config | (config or {})
        kind = AutoModelForMaskedLM if masked else AutoModel
        if labels is not None:
            kind, values["num_labels"] = AutoModelForSequenceClassification, labels
        model = kind.from_config(AutoConfig.for_model(family, **values))
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases of 0 and norms of 1 would hide a wrong fusion
                torch.nn.init.normal_(parameter, parameter.mean().item(), 0.1)
        model.save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)
    return folder
