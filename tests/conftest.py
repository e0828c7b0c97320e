"""Fixtures: tiny models with the families' real code, real words, real data where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that asks a hub is a bug
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parent.parent
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


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def words() -> list[str]:
    import wordfreq

    return wordfreq.top_n_list("en", 400)


def _train_tokenizer(kind: str, texts: list[str]):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    if kind == "bert":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=special)
        ends = ("[CLS]", 2), ("[SEP]", 3)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trainer = trainers.BpeTrainer(
            vocab_size=900,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        ends = ("<s>", 0), ("</s>", 2)
    trainer.show_progress = False
    tokenizer.train_from_iterator(texts, trainer)
    (first, first_id), (last, last_id) = ends
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(first, first_id), (last, last_id)],
    )
    return tokenizer


def make_model(kind: str, folder: Path, texts: list[str], *, seed: int = 0) -> Path:
    """Write a tiny model of random weights and a trained tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    tokenizer = _train_tokenizer(kind, texts + SENTENCES)
    size = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "initializer_range": 0.2,
    }
    if kind == "bert":
        config = AutoConfig.for_model("bert", **size, max_position_embeddings=128)
        names = dict(zip(("pad", "unk", "cls", "sep", "mask"),
                         ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), strict=True))  # fmt: skip
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
    else:
        # 130 positions, of which RoBERTa uses 128: they are numbered from padding_idx + 1 = 2.
        config = AutoConfig.for_model(kind, **size, max_position_embeddings=130, type_vocab_size=1,
                                      pad_token_id=1, bos_token_id=0, eos_token_id=2)  # fmt: skip
        names = dict(zip(("cls", "pad", "sep", "unk", "mask"),
                         ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), strict=True))  # fmt: skip
        inputs = ["input_ids", "attention_mask"]
    # As many published files have it: a cap and a padding that must not reach the run time.
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16, pad_id=tokenizer.token_to_id(names["pad"]))
    hf_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=128,
        model_input_names=inputs,
        **{f"{name}_token": token for name, token in names.items()},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModel.from_config(config).save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory, words) -> Path:
    return make_model("bert", tmp_path_factory.mktemp("models") / "tiny-bert", words)


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory, words) -> Path:
    return make_model("roberta", tmp_path_factory.mktemp("models") / "tiny-roberta", words)


@pytest.fixture(scope="session")
def tiny_xlm_roberta(tmp_path_factory, words) -> Path:
    return make_model("xlm-roberta", tmp_path_factory.mktemp("models") / "tiny-xlm-r", words)


@pytest.fixture(scope="session")
def tiny_camembert(tmp_path_factory, words) -> Path:
    return make_model("camembert", tmp_path_factory.mktemp("models") / "tiny-camembert", words)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory, tiny_bert) -> Path:
    """An exported tiny BERT (mean pooling)."""
    from mirror_export import ExportConfig, export_bundle

    out = tmp_path_factory.mktemp("bundles") / "bundle"
    export_bundle(ExportConfig(str(tiny_bert), out, pooling="mean"))
    return out


@pytest.fixture
def bundle_copy(bundle, tmp_path) -> Path:
    """A bundle to damage."""
    import shutil

    return Path(shutil.copytree(bundle, tmp_path / "bundle-copy"))


@pytest.fixture(scope="session")
def words_file(tmp_path_factory, words) -> Path:
    path = tmp_path_factory.mktemp("data") / "words.txt"
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The embedded default, fetched beforehand; the tests themselves stay offline."""
    from mirror_rt import ModelError
    from mirror_train.default_model import default_model_folder

    try:
        return default_model_folder(offline=True)
    except ModelError as error:
        pytest.skip(f"the default model is not cached (bash tests/run.sh fetches it): {error}")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real evaluation data."""
    folder = Path(os.environ.get("MIRROR_RT_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "multisimlex").is_dir():
        pytest.skip(f"no evaluation data at {folder}: set MIRROR_RT_DATA to a folder that has it")
    return folder


@pytest.fixture
def cli(capfd) -> Callable[..., Result]:
    """Run `mirror-rt` in this process."""
    from mirror_rt.cli import main

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `mirror-rt` in a process of its own."""

    def run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "mirror_rt.cli", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, check=False, **options)

    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
