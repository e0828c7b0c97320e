"""Gradient caching: the gradient of the whole batch, in the memory of a chunk."""

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from mirror_rt import DataError
from mirror_train import TorchEncoder, TrainConfig, infonce, load_recipe, load_training_data, tune
from mirror_train.data.training_data import TrainingData
from mirror_train.model.forward import Forward, in_order
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import load_pretrained
from mirror_train.training.gradient_caching import backward_in_chunks
from rounding import RUN_ERROR
from tiers import tiers

PROBES = ["the river", "a", "old town on the river", "doctor"]
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card"),
        ],
    ),
]


@pytest.fixture
def phrases(words):
    """96 strings of one to twelve words, as 48 pairs."""
    return [" ".join(words[i : i + 1 + i % 12]) for i in range(96)]


class Setting:
    """A tiny model in training mode with dropout, its tokens, and their chunks."""

    def __init__(self, folder, texts, *, precision="fp32", device="cpu", scale=None):
        self.device = torch.device(device)
        pretrained = load_pretrained(folder, dropout=0.1)
        self.model = pretrained.model.to(self.device).train()
        self.tokens = pretrained.text_tokenizer(25)(texts).tokens
        self.forward = Forward(self.model, Head(["mean"]), pretrained.pad_id, self.device,
                               dtype=DTYPES[precision])  # fmt: skip
        self.chunks = self.forward.chunks(self.tokens, max_rows=20)
        scale = scale or 2.0**10
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16", init_scale=scale)
        self.encode = partial(self.forward.embed_chunk, self.tokens)

    def loss(self, parts):
        z1, z2 = in_order(parts, self.chunks).chunk(2)
        return infonce(z1, z2, temperature=0.04)

    def backward(self, *, cached):
        """Gradients of a step; the generators stand the same in front of it."""
        self.model.zero_grad()
        torch.manual_seed(3)

        def backward(parts):
            loss = self.loss(parts)
            self.scaler.scale(loss).backward()
            return loss

        if cached:
            loss = backward_in_chunks(self.encode, self.chunks, backward, device=self.device)
        else:
            loss = backward([self.encode(chunk) for chunk in self.chunks])
        gradients = [p.grad.clone() for p in self.model.parameters()]
        return loss.item(), torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", DTYPES)
def test_cached_equals_uncached_with_dropout(tiny_bert, phrases, precision, device):
    setting = Setting(tiny_bert, phrases, precision=precision, device=device)
    assert len(setting.chunks) > 5
    loss, expected = setting.backward(cached=False)
    cached_loss, gradient = setting.backward(cached=True)
    assert cached_loss == loss
    assert expected.norm() > 0
    # Back through the model as many numbers are added up as on the way there.
    assert (gradient - expected).norm() <= RUN_ERROR * expected.norm()
    other = Setting(tiny_bert, phrases, precision=precision, device=device)
    torch.manual_seed(4)
    other_loss = other.loss([other.encode(chunk) for chunk in other.chunks])
    assert other_loss.item() != pytest.approx(loss, rel=1e-4)  # dropout was on


def test_the_scale_of_a_grad_scaler_is_applied_once(tiny_bert, phrases):
    plain = Setting(tiny_bert, phrases, precision="fp16", scale=1.0).backward(cached=True)[1]
    scaled = Setting(tiny_bert, phrases, precision="fp16", scale=64.0).backward(cached=True)[1]
    assert (scaled / 64 - plain).norm() <= 0.02 * plain.norm()  # fp16 rounds below 6e-5


def test_a_step_that_overflows_is_skipped(tiny_bert, phrases):
    setting = Setting(tiny_bert, phrases, precision="fp16", scale=2.0**60)
    optimizer = torch.optim.AdamW(setting.model.parameters())
    before = [p.detach().clone() for p in setting.model.parameters()]
    setting.backward(cached=True)
    setting.scaler.step(optimizer)
    setting.scaler.update()
    assert setting.scaler.get_scale() == 2.0**59
    assert all(map(torch.equal, before, setting.model.parameters()))


def test_an_autocast_context_around_both_passes(tiny_bert, phrases):
    """Weights cast without a graph in the first pass must not be met again in the second."""
    setting = Setting(tiny_bert, phrases, precision="bf16")
    expected = setting.backward(cached=True)[1]
    with torch.autocast("cpu", torch.bfloat16):
        gradient = setting.backward(cached=True)[1]
    assert (gradient - expected).norm() <= 0.02 * expected.norm()


def test_both_passes_give_the_same_embeddings_and_leave_the_generators_alone(tiny_bert, phrases):
    setting = Setting(tiny_bert, phrases)
    seen = []
    encode = setting.encode
    setting.encode = lambda chunk: seen.append(encode(chunk)) or seen[-1]
    setting.backward(cached=True)
    count = len(setting.chunks)
    after = torch.get_rng_state()
    assert len(seen) == 2 * count
    assert [z.requires_grad for z in seen] == [True] * 2 * count
    assert [z.is_leaf for z in seen] == [True] * count + [False] * count
    assert all(map(torch.equal, seen[:count], seen[count:]))
    setting.encode = encode
    setting.backward(cached=False)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("max_rows", [1, 7, 96])
@pytest.mark.parametrize("pad_to", [None, 25])
def test_chunks_keep_to_their_budget(tiny_bert, phrases, max_rows, pad_to):
    setting = Setting(tiny_bert, phrases)
    forward = dataclasses.replace(setting.forward, pad_to=pad_to)
    chunks = forward.chunks(setting.tokens, max_rows=max_rows)
    assert sorted(np.concatenate(chunks)) == list(range(96))
    lengths = setting.tokens.lengths if pad_to is None else np.full(96, pad_to)
    for rows in chunks:
        longest = lengths[rows].max()
        assert (len(rows) - 1) * longest <= max_rows * lengths.mean()


# Of a whole run.


@pytest.fixture
def configure(tiny_bert, tmp_path):
    def make(out="tuned", name="word", *, recipe=None, **options):
        changes = {"batch_size": 30, "learning_rate": 1e-3, "epochs": 1} | (recipe or {})
        return TrainConfig(
            recipe=load_recipe(name).replace(**changes),
            out=tmp_path / out,
            model=str(tiny_bert),
            precision="fp32",
            **options,
        )

    return make


@pytest.fixture
def data(words_file):
    return load_training_data(words_file)


def vectors(folder):
    return TorchEncoder.load(folder).encode(PROBES)


@pytest.mark.parametrize("name", tiers(["word", "mirror-ms", "simcse-nli"], fast=["word"]))
def test_a_run_equals_one_whose_batch_fits(name, data, words, configure):
    """With every loss, and with hard negatives as a third view."""
    off = {"dropout": 0.0} | ({"span_length": 2} if name == "word" else {})
    if name == "simcse-nli":
        data = TrainingData(words[:120], words[120:240], None, "t", hard_negatives=words[240:360])
    cached = tune(data, configure("cached", name, recipe=off, loss_batch=100))
    whole = tune(data, configure("whole", name, recipe=off | {"batch_size": 100}))
    rounding = 1e-5 if name == "word" else 1e-4
    np.testing.assert_allclose(cached.stats.losses, whole.stats.losses, rtol=rounding)
    np.testing.assert_allclose(vectors(cached.out), vectors(whole.out), atol=1e-4)
    assert cached.stats.real_tokens == whole.stats.real_tokens


def test_a_loss_batch_of_the_batch_size_changes_nothing(data, configure):
    same = tune(data, configure("same", loss_batch=30))
    plain = tune(data, configure("plain"))
    assert same.stats.losses == plain.stats.losses
    np.testing.assert_array_equal(vectors(same.out), vectors(plain.out))


def test_from_the_command_line(cli, succeed, tiny_bert, words_file, tmp_path):
    line = ["tune", "--recipe", "word", "--model", tiny_bert, "--data", words_file,
            "--batch-size", 20, "--epochs", 1, "--out", tmp_path / "out"]  # fmt: skip
    for number, code, message in [
        (10, 2, "--loss-batch must be at least --batch-size, 20, got 10"),
        (0, 2, "--loss-batch must be at least --batch-size"),
    ]:
        result = cli(*line, "--loss-batch", number)
        assert (result.code, len(result.err.splitlines())) == (code, 1)
        assert message in result.err
    succeed(*line, "--loss-batch", 150)
    training = json.loads((tmp_path / "out" / "mirror.json").read_text())["training"]
    assert (training["loss_batch"], training["steps"], training["processes"]) == (150, 3, 1)
    assert "--loss-batch N" in cli("tune", "--help").out


def test_a_loss_batch_without_negatives(tmp_path, configure):
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"a||{i}\n" for i in range(80)))
    with pytest.raises(DataError, match="none is a negative: give more pairs, or a larger --loss"):
        tune(load_training_data(path), configure(loss_batch=60))


MEMORY = """
import re, sys
from pathlib import Path
from mirror_train import TrainConfig, load_recipe, load_training_data, tune

def peak():  # MiB; not ru_maxrss, which starts at the size of the parent process
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

model, text, out = sys.argv[1:]
data = load_training_data(Path(text))
recipe = load_recipe("sentence").replace(max_length=64)
for batch_size, loss_batch in [(20, None), (20, 400), (400, None)]:
    config = TrainConfig(recipe=recipe.replace(batch_size=batch_size), out=Path(out) / f"{peak()}",
                        model=model, precision="fp32", loss_batch=loss_batch)
    tune(data, config)
    print(peak())
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc (Linux)")
def test_memory_follows_the_batch_size_not_the_loss_batch(tiny_bert, words, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(" ".join(words[i:] + words[:i]) for i in range(400)))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tiny_bert), str(path), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    small, cached, whole = map(float, done.stdout.split())
    assert whole - small > 200, "the batch is too small to show anything"
    assert cached - small < 0.15 * (whole - small)
