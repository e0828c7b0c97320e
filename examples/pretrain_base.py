"""Pre-train a small masked language model from scratch on the text at hand.

A base that no contrastive training has touched, to see what tuning does to one:

    python examples/pretrain_base.py --data ../shared/data --out base
    mirror-rt study systems --data ../shared/data --model base --learning-rate 2e-4 --out study

Text: sentences/LANG.txt, words/LANG.txt and the text columns of the tables in pairs/ (in English;
without pairs/sts-*, whose sentences models are evaluated on), or the lines of --texts FILE.
Tokenizer: WordPiece, trained on the same text; its trainer breaks ties in another order each time,
so --seed does not fix every piece. Model: BERT, masked as in the paper (Devlin et al. 2019): 15 %
of the tokens, of which 80 % become [MASK], 10 % a random token, 10 % stay. Learning rate: up over
the first tenth of the steps, then linearly down. One in a hundred texts is held out, and the loss
on those is printed.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    get_linear_schedule_with_warmup,
)

from mirror_rt.errors import DataError, MirrorError
from mirror_rt.io.atomic import check_free, new_folder, write_json
from mirror_rt.io.text import iter_lines

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
TEXT_COLUMNS = {"sentence", "sentence1", "sentence2", "premise", "hypothesis"}
HELD_OUT = 100  # one text in 100


def main() -> int:
    """Train and write; return the exit code."""
    arguments = parse()
    try:
        check_free(arguments.out, overwrite=arguments.overwrite)
        texts = read_texts(arguments)
    except MirrorError as error:
        print(f"pretrain_base: error: {error}", file=sys.stderr)
        return 1
    torch.manual_seed(arguments.seed)
    tokenizer = train_tokenizer(texts, arguments)
    encoded = [
        ids
        for ids in tokenizer(texts, truncation=True, max_length=arguments.max_length).input_ids
        if len(ids) > 3
    ]
    order = np.random.default_rng(arguments.seed).permutation(len(encoded))
    held = {int(row) for row in order[: max(1, len(order) // HELD_OUT)]}
    train = [ids for row, ids in enumerate(encoded) if row not in held]
    test = [encoded[row] for row in sorted(held)]
    tokens = sum(map(len, train))
    model = make_model(tokenizer, arguments)
    size = sum(p.numel() for p in model.parameters())
    print(f"{len(texts):,} texts, {tokens:,} tokens in training; {size / 1e6:.1f} M parameters")
    run(model, tokenizer, train, test, arguments)
    with new_folder(arguments.out, overwrite=arguments.overwrite) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        declare_mean_pooling(folder, arguments.hidden)
    print(f"{arguments.out}: next, mirror-rt tune --model {arguments.out} ...")
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR", help="folder with sentences/, pairs/")
    source.add_argument("--texts", type=Path, nargs="+", metavar="FILE", help="one text a line")
    parser.add_argument("--lang", default="en", help="with --data (default en)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--top", type=int, help="train on the first N texts alone", metavar="N")
    parser.add_argument("--vocabulary", type=int, default=8000, help="tokens (default 8000)")
    parser.add_argument("--layers", type=int, default=4, help="default 4")
    parser.add_argument("--hidden", type=int, default=256, help="size of a vector (default 256)")
    parser.add_argument("--heads", type=int, default=4, help="default 4")
    parser.add_argument("--max-length", type=int, default=64, help="tokens of a text (default 64)")
    parser.add_argument("--epochs", type=float, default=10, help="default 10")
    parser.add_argument("--batch-size", type=int, default=128, help="texts (default 128)")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="highest (default 5e-4)")
    parser.add_argument("--seed", type=int, default=42, help="default 42")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace --out")
    return parser.parse_args()


def read_texts(arguments: argparse.Namespace) -> list[str]:
    """All different texts.

    Raises:
        DataError: there are none, or a file is not UTF-8 text.
    """
    if arguments.texts:
        lines = (line for path in arguments.texts for line in iter_lines(path))
    else:
        lines = folder_texts(arguments.data, arguments.lang)
    texts = list(dict.fromkeys(text for line in lines if (text := line.strip())))
    texts = texts[: arguments.top]
    if len(texts) < HELD_OUT:
        raise DataError(f"{len(texts)} texts are too few to learn a language from")
    return texts


def folder_texts(data: Path, lang: str) -> Iterator[str]:
    """The texts of a folder of data."""
    for path in (data / "sentences" / f"{lang}.txt", data / "words" / f"{lang}.txt"):
        if path.is_file():
            yield from iter_lines(path)
    if lang != "en":
        return
    for path in sorted((data / "pairs").glob("*.[ct]sv")):
        if path.name.startswith("sts-"):
            continue
        with path.open(encoding="utf-8", newline="") as file:
            quoting = csv.QUOTE_MINIMAL if path.suffix == ".csv" else csv.QUOTE_NONE
            for row in csv.DictReader(file, delimiter="\t", quoting=quoting):
                yield from (text for name, text in row.items() if name in TEXT_COLUMNS and text)


def train_tokenizer(texts: list[str], arguments: argparse.Namespace) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer as BERT's, lower case."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=arguments.vocabulary,
        special_tokens=list(SPECIAL.values()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in (SPECIAL["cls"], SPECIAL["sep"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=arguments.max_length,
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    )


def declare_mean_pooling(folder: Path, hidden: int) -> None:
    """Say, as sentence-transformers does, that a text's vector is the mean of its tokens'.

    No pre-training task looked at [CLS] here: recipes that would take it take the mean then.
    """
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling/config.json",
               {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True})  # fmt: skip
    write_json(folder / "modules.json", modules)


def make_model(
    tokenizer: PreTrainedTokenizerFast, arguments: argparse.Namespace
) -> BertForMaskedLM:
    """A BERT of random weights."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        intermediate_size=4 * arguments.hidden,
        max_position_embeddings=arguments.max_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForMaskedLM(config).to(arguments.device)


def run(
    model: BertForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    train: list[list[int]],
    test: list[list[int]],
    arguments: argparse.Namespace,
) -> None:
    """Train to the end; print the loss on held-out texts at ten moments."""
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    per_epoch = math.ceil(len(train) / arguments.batch_size)
    total = max(1, math.ceil(arguments.epochs * per_epoch))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=arguments.learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(total / 10), total)
    print(f"held-out loss before: {held_out_loss(model, collate, test, arguments):.3f}")
    began = time.perf_counter()
    bar = tqdm(total=total, unit="step", disable=not sys.stderr.isatty())
    model.train()
    for step, ids in enumerate(batches(train, total, arguments)):
        loss = masked_loss(model, collate, ids, arguments.device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        bar.update(1)
        if (step + 1) % math.ceil(total / 10) == 0 or step + 1 == total:
            held = held_out_loss(model, collate, test, arguments)
            seconds = time.perf_counter() - began
            bar.write(f"step {step + 1}/{total}: held-out loss {held:.3f} ({seconds:.0f} s)")
    bar.close()
    model.eval()


def batches(
    train: list[list[int]], total: int, arguments: argparse.Namespace
) -> Iterator[list[list[int]]]:
    """`total` batches of texts of similar length, in a new order every epoch."""
    rng = np.random.default_rng(arguments.seed)
    lengths = np.array([len(ids) for ids in train])
    done = 0
    while True:
        order = np.argsort(lengths + rng.uniform(0, 4, len(train)), kind="stable")
        parts = np.array_split(order, math.ceil(len(train) / arguments.batch_size))
        for part in rng.permutation(len(parts)):
            if done == total:
                return
            done += 1
            yield [train[row] for row in parts[part]]


def masked_loss(
    model: BertForMaskedLM,
    collate: DataCollatorForLanguageModeling,
    ids: list[list[int]],
    device: str,
) -> torch.Tensor:
    """Mask a batch at random; the cross-entropy of the masked tokens.

    The vocabulary's scores are worked out for those tokens alone: they are one in seven, and for
    a model as small as this the scores cost as much as the layers.
    """
    batch = collate([{"input_ids": row} for row in ids]).to(device)
    mask = (batch["input_ids"] != model.config.pad_token_id).long()
    hidden = model.bert(batch["input_ids"], attention_mask=mask).last_hidden_state
    masked = batch["labels"] != -100
    return cross_entropy(model.cls(hidden[masked]), batch["labels"][masked])


@torch.no_grad()
def held_out_loss(
    model: BertForMaskedLM,
    collate: DataCollatorForLanguageModeling,
    test: list[list[int]],
    arguments: argparse.Namespace,
) -> float:
    """Mean loss of the held-out texts, with the same masks every time."""
    model.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = arguments.batch_size
        parts = [test[start : start + size] for start in range(0, len(test), size)]
        losses = [masked_loss(model, collate, part, arguments.device).item() for part in parts]
    model.train()
    return float(np.average(losses, weights=[len(part) for part in parts]))


if __name__ == "__main__":
    sys.exit(main())
