"""Write small files of every format that this version has, which later versions must still read.

The lists of public names come with them: a name of theirs goes only when it was announced.

Run it once for a release, and commit what it writes:
`PYTHONPATH=tests/support/models:tests/support/documents python tests/kept/kept_files.py`.
"""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

from mirror_export import ExportConfig, export_bundle, export_pack
from mirror_rt import Encoder, Reranker, __version__
from mirror_rt.bulk import DatasetConfig, encode_dataset
from mirror_rt.distillation import DistillConfig, distill
from mirror_rt.heads.task_heads import Heads, TaskHead
from mirror_rt.inference.load_options import LoadOptions
from mirror_train import TrainConfig, load_recipe, load_training_data, tune
from mirror_train.training.checkpoint import CheckpointStore
from public_names import LISTS
from tiny_models import SENTENCES, TINY, make_tokenizer

KEPT = Path(__file__).parent
TEXTS = [*SENTENCES[:4], "the river", "a doctor"]
SERVER = """source = "pack"
port = 8099
model_name = "kept"
max_items = 64
timeout = 5.0
on_too_long = "truncate"
"""


def write_model(folder, *, of_pairs=False):
    """Write a BERT of one layer and 16 dimensions, or a cross-encoder on it: 40 kB."""
    tokenizer = make_tokenizer(TINY["bert"], SENTENCES[:4])
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), intermediate_size=32,
                        max_position_embeddings=32, initializer_range=0.2, **size)  # fmt: skip
    if of_pairs:
        config.num_labels = 1
        BertForSequenceClassification(config).save_pretrained(folder)
    else:
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    names = {f"{name}_token": token for name, token in TINY["bert"].tokens}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=32, **names,
        truncation_side="left" if of_pairs else "right",
    ).save_pretrained(folder)  # fmt: skip


def add_head(folder):
    """Give a tuned folder a classifier of two classes."""
    weight = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    head = TaskHead("sign", "classifier", weight, np.zeros(2, np.float32), ("minus", "plus"))
    Heads(16, "mean", {"sign": head}).write(folder)


def write_job(out):
    """Write the folder of a finished bulk job, and what it read."""
    (out / "texts").mkdir()
    lines = [json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)]
    (out / "texts" / "a.jsonl").write_text("".join(lines))
    load = LoadOptions(threads=1)
    paths = (str(out / name) for name in ("pack/en", "texts", "job"))
    encode_dataset(DatasetConfig(*paths, load=load))


def tune_kept(folder, language, **options):
    """Tune the base for two steps, as the kept checkpoint was."""
    recipe = load_recipe("word").replace(batch_size=8, epochs=1, learning_rate=1e-2)
    data = replace(load_training_data(folder / "words.txt"), language=language)
    config = TrainConfig(out=folder / "tuned" / language, model=str(folder / "base"), recipe=recipe,
                        device="cpu", pooling="mean", precision="fp32", seed=ord(language[0]),
                        **options)  # fmt: skip
    return tune(data, config)


def write_reranker(out):
    """Write a cross-encoder that declares a prompt and cuts from the left, and its scores."""
    write_model(out / "model", of_pairs=True)
    settings = {"model_type": "CrossEncoder", "prompts": {"q": "the "}, "default_prompt_name": "q"}
    (out / "model" / "config_sentence_transformers.json").write_text(json.dumps(settings))
    export_bundle(ExportConfig(str(out / "model"), out / "reranker", parity_texts=TEXTS))
    shutil.rmtree(out / "model")
    with Reranker.load(out / "reranker") as reranker:
        np.save(out / "scores.npy", reranker.predict(pairs_of(TEXTS)))


def pairs_of(texts):
    """Pair each text with one behind it, which is too long in the last pair."""
    return [*itertools.pairwise(texts), (texts[0], " ".join(texts * 9))]


def write_static(out):
    """Write the static encoder of the kept bundle, and its vectors."""
    with Encoder.load(out / "pack" / "en") as encoder:
        distill(encoder, out / "static", DistillConfig(words=str(out / "words.txt"), dimension=8))
    with Encoder.load(out / "static") as encoder:
        np.save(out / "static.npy", encoder.encode(TEXTS))


def write(out):
    write_model(out / "base")
    words = sorted({word for text in TEXTS for word in text.split()})[:16]
    (out / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    with patch.object(CheckpointStore, "remove"):
        tuned = [tune_kept(out, language, checkpoint_every=1).out for language in ("en", "ru")]
    add_head(tuned[0])
    options = ExportConfig("", out / "pack", parity_texts=TEXTS, precisions=("fp32", "int8"),
                           force=True)  # fmt: skip
    export_pack([str(folder) for folder in tuned], options)
    for folder in (*tuned, out / "tuned" / "ru.checkpoints"):
        shutil.rmtree(folder)
    with Encoder.load(out / "pack" / "en") as encoder:
        np.save(out / "vectors.npy", encoder.encode(TEXTS))
    write_job(out)
    write_reranker(out)
    write_static(out)
    (out / "serve.toml").write_text(SERVER)


if __name__ == "__main__":
    making, out = KEPT / ".making", KEPT / __version__
    shutil.rmtree(making, ignore_errors=True)
    write(making)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(LISTS, making / "public")
    making.rename(out)
