"""Drophead and controlled dropout, against their definitions."""

import dataclasses

import numpy as np
import pytest
import torch

from mirror_rt import ConfigError
from mirror_rt.bundle.families import FAMILIES
from mirror_train import TorchEncoder, TrainConfig, infonce, load_recipe, load_training_data, tune
from mirror_train.model.dropout import drop_heads, drophead
from mirror_train.model.forward import Forward, in_order
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import load_pretrained
from mirror_train.training.gradient_caching import backward_in_chunks
from rounding import RUN_ERROR
from tiers import tiers

CPU = torch.device("cpu")
PROBES = ["the river", "a", "old town on the river", "doctor"]
HEADS = 4
KNOWN = [name for name, row in FAMILIES.items() if row.attention_output]
# The weight behind an attention's heads, by the names of transformers.
PROJECTIONS = tuple(
    f"{name}.weight"
    for name in ("attention.output.dense", "attention.out_lin", "attention.dense", "attn.o",
                 "attn.Wo")
)  # fmt: skip


def load(folder):
    """A model without dropout, in training mode, and its input of three texts."""
    pretrained = load_pretrained(folder, dropout=0.0)
    tokens = pretrained.text_tokenizer(25)(PROBES[:3]).tokens
    batch = tokens.pad(np.arange(3), pad_id=pretrained.pad_id)
    ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
    return pretrained.model.train(), {"input_ids": ids, "attention_mask": mask}


def hidden(model, batch):
    with torch.no_grad():
        return model(**batch).last_hidden_state[batch["attention_mask"].bool()]


def without_heads(model, dropped):
    """The weights with those heads cut off, the others larger: drophead in every layer."""
    weights, found = model.state_dict(), 0
    scale = torch.tensor([0.0 if i in dropped else HEADS / (HEADS - len(dropped))
                          for i in range(HEADS)])  # fmt: skip
    for name in weights:
        if name.endswith(PROJECTIONS):
            columns = weights[name].unflatten(1, (HEADS, -1))
            weights[name] = (columns * scale[:, None]).flatten(1)
            found += 1
    assert found in (1, 2)  # two layers, which ALBERT shares
    return weights


def implementations(model):
    return ("eager", "sdpa") if model._supports_sdpa else ("eager",)


@pytest.mark.parametrize("family", tiers(KNOWN, fast=("bert", "modernbert")))
def test_a_dropped_head_is_one_whose_weights_are_zero(family, tiny_model, monkeypatch):
    model, batch = load(tiny_model(family))
    cut, _ = load(tiny_model(family))
    cut.load_state_dict(without_heads(model, {1, 3}))
    monkeypatch.setattr(
        torch, "rand", lambda n, heads, device: torch.tensor([[0.9, 0.1, 0.5, 0.2]] * n)
    )
    for implementation in implementations(model):
        model.set_attn_implementation(implementation)
        cut.set_attn_implementation(implementation)
        plain = hidden(model, batch)
        with drophead(model, 0.3):
            dropped = hidden(model, batch)
        torch.testing.assert_close(dropped, hidden(cut, batch), atol=RUN_ERROR * 32**0.5, rtol=0)
        assert (dropped - plain).abs().max() > 1e-2
        assert torch.equal(hidden(model, batch), plain)  # the hooks are gone


@pytest.mark.parametrize("family", tiers(KNOWN, fast=("bert", "modernbert")))
def test_rate_0_and_evaluation_change_and_draw_nothing(family, tiny_model):
    model, batch = load(tiny_model(family))
    before = torch.get_rng_state()
    plain = hidden(model, batch)
    with drophead(model, 0.0):
        assert torch.equal(hidden(model, batch), plain)
    with drophead(model.eval(), 0.5):
        assert torch.equal(hidden(model, batch), plain)
    assert torch.equal(torch.get_rng_state(), before)
    with drophead(model.train(), 0.5):
        assert not torch.equal(hidden(model, batch), plain)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.7])
def test_every_text_draws_for_itself_and_the_expectation_stays(rate):
    torch.manual_seed(1)
    n = 40_000
    scales = drop_heads(torch.ones(n, 2, HEADS * 3), heads=HEADS, rate=rate)
    scales = scales.unflatten(-1, (HEADS, 3))
    assert (scales == scales[:, :1, :, :1]).all()  # a head as a whole, in all tokens of a text
    scales = scales[:, 0, :, 0]
    kept = scales > 0
    torch.testing.assert_close(scales, kept * HEADS / kept.sum(1, keepdim=True))
    torch.testing.assert_close(scales.sum(1), torch.full((n,), float(HEADS)))
    error = 5 * scales.std(0) / n**0.5
    assert ((scales.mean(0) - 1).abs() < error).all()
    expected = rate - rate**HEADS  # where all would go, all stay
    assert kept.logical_not().float().mean().item() == pytest.approx(expected, abs=0.01)


def test_a_family_that_is_not_known_is_refused(tiny_model):
    model, _ = load(tiny_model("rembert"))
    with (
        pytest.raises(ConfigError, match=r"drophead 0.2: .* rembert .*--drophead 0"),
        drophead(model, 0.2),
    ):
        pass
    with drophead(model, 0.0):
        pass


@pytest.fixture
def run(tiny_bert, words_file, tmp_path):
    """Tune on 80 words in batches of 20: eight steps."""
    data = load_training_data(words_file)
    data = dataclasses.replace(data, first=data.first[:80], second=data.first[:80])

    def tuned(name, *, recipe, **options):
        changes = {"batch_size": 20, "learning_rate": 1e-3, "dropout": 0.0} | recipe
        config = TrainConfig(
            recipe=load_recipe("word").replace(**changes),
            out=tmp_path / name,
            model=str(tiny_bert),
            precision="fp32",
            **options,
        )
        return TorchEncoder.load(tune(data, config).out).encode(PROBES)

    return tuned


@pytest.mark.full
def test_runs_are_reproducible_and_resumable(run, crash_at):
    recipe = {"drophead": 0.3, "dropout": 0.1, "same_dropout": True, "span_length": 2}
    whole = run("whole", recipe=recipe)
    np.testing.assert_array_equal(run("again", recipe=recipe), whole)
    for name, off in (("drophead", 0.0), ("same_dropout", False)):
        other = run(name, recipe=recipe | {name: off})
        assert np.abs(other - whole).max() > 1e-3
    with crash_at(5):
        run("parts", recipe=recipe, checkpoint_every=2)
    np.testing.assert_array_equal(run("parts", recipe=recipe, resume=True), whole)


class Setting:
    """A tiny model that drops features and heads, and strings with copies: equal or masked."""

    def __init__(self, folder, words, *, masked=False, pooling="mean", **options):
        self.model = load_pretrained(folder, dropout=0.2).model.train()
        texts = [" ".join(words[i : i + 1 + i % 7]) for i in range(40)]
        copies = [f"{text[:-2]}[MASK]" for text in texts] if masked else texts
        pretrained = load_pretrained(folder)
        self.tokens = pretrained.text_tokenizer(25)(texts + copies).tokens
        self.forward = Forward(self.model, Head([pooling]), pretrained.pad_id, CPU,
                               same_dropout=True, **options)  # fmt: skip

    def chunks(self, **options):
        chunks = self.forward.chunks(self.tokens, **options)
        assert sorted(np.concatenate(chunks).tolist()) == list(range(80))
        for chunk in chunks:  # strings, and then their copies
            np.testing.assert_array_equal(chunk[: len(chunk) // 2] + 40, chunk[len(chunk) // 2 :])
        return chunks

    def encode(self, rows):
        return self.forward.embed_chunk(self.tokens, rows)


@pytest.mark.parametrize("options", [{}, {"pooling": "mean-with-padding", "pad_to": 25},
                                     {"dtype": torch.bfloat16}])  # fmt: skip
def test_controlled_dropout_gives_both_copies_the_same_vector(tiny_bert, words, options):
    setting = Setting(tiny_bert, words, **options)
    torch.manual_seed(3)
    with torch.no_grad(), drophead(setting.model, 0.2):
        chunks = setting.chunks(max_rows=10)
        first, second = setting.forward.embed(setting.tokens, chunks).chunk(2)
        again, _ = setting.forward.embed(setting.tokens, chunks).chunk(2)
    assert torch.equal(first, second)
    assert not torch.equal(first, again)  # the next pass draws anew
    free = dataclasses.replace(setting.forward, same_dropout=False)
    with torch.no_grad():
        one, other = free.embed(setting.tokens, free.chunks(setting.tokens)).chunk(2)
    assert (one - other).abs().max() > 1e-2


def test_masked_copies_differ_by_their_masks_alone(tiny_bert, words):
    """A copy gets the dropout that its string's place in the chunk has, padded as the string is."""
    setting = Setting(tiny_bert, words, masked=True)
    rows = setting.chunks()[0]
    strings, copies = np.split(rows, 2)
    length = int(setting.tokens.lengths[rows].max())
    assert (setting.tokens.lengths[strings] != setting.tokens.lengths[copies]).any()
    torch.manual_seed(5)
    with torch.no_grad():
        first, second = setting.encode(rows).chunk(2)
        for part, found in ((strings, first), (copies, second)):
            torch.manual_seed(5)
            assert torch.equal(setting.forward._embed_rows(setting.tokens, part, length), found)


def test_gradient_caching_replays_heads_and_controlled_dropout(tiny_bert, words):
    setting = Setting(tiny_bert, words, masked=True)
    chunks = setting.chunks(max_rows=10)
    assert len(chunks) > 5

    def backward(parts):
        z1, z2 = in_order(parts, chunks).chunk(2)
        infonce(z1, z2, temperature=0.04).backward()

    def gradients(run):
        setting.model.zero_grad()
        torch.manual_seed(3)
        run()
        return torch.cat([p.grad.flatten() for p in setting.model.parameters()])

    with drophead(setting.model, 0.3):
        expected = gradients(lambda: backward([setting.encode(chunk) for chunk in chunks]))
        cached = gradients(lambda: backward_in_chunks(setting.encode, chunks, backward, device=CPU))
    assert expected.norm() > 0
    # Back through the model as many numbers are added up as on the way there.
    assert (cached - expected).norm() <= RUN_ERROR * expected.norm()


@pytest.mark.full
def test_fields_that_older_recipes_lack(tmp_path, run, succeed, tiny_bert, words_file):
    recipe = load_recipe("word")
    assert (recipe.drophead, recipe.same_dropout) == (0.0, False)
    with pytest.raises(ConfigError, match=r"drophead must be .* less than 1, got 1\.0"):
        recipe.replace(drophead=1)
    with pytest.raises(ConfigError, match="same_dropout must be bool, got 1"):
        recipe.replace(same_dropout=1)
    succeed("tune", "--recipe", "word", "--data", words_file, "--model", tiny_bert, "--out",
            tmp_path / "out", "--drophead", 0.2, "--same-dropout", "--epochs", 1)  # fmt: skip
    saved = (tmp_path / "out" / "mirror.json").read_text()
    assert '"drophead": 0.2' in saved
    assert '"same_dropout": true' in saved
