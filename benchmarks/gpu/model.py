"""Make a BERT-base with random weights, and a tokenizer for it, without a network.

    python benchmarks/gpu/model.py FOLDER [--layers 12]

Speed and agreement with float32 do not depend on how the weights were trained. Its standard
deviation of .02 is that of BERT: with larger weights float16 would not agree.
"""

from __future__ import annotations

import argparse
import itertools
import string
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def vocabulary(size: int) -> list[str]:
    """Return special tokens, letters that begin or go on with a word, and short words."""
    letters = string.ascii_lowercase
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    words = ("".join(word) for n in (2, 3, 4) for word in itertools.product(letters, repeat=n))
    return tokens + list(itertools.islice(words, size - len(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=arguments.layers)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    vocab = arguments.folder / "vocab.txt"
    vocab.write_text("\n".join(vocabulary(config.vocab_size)) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(vocab=str(vocab), model_max_length=config.max_position_embeddings)
    tokenizer.save_pretrained(arguments.folder)
    BertModel(config).save_pretrained(arguments.folder)
    print(f"{arguments.folder}: {arguments.layers} layers, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
