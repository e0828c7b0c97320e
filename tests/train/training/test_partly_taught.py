"""Batches of which a teacher has read a part: it follows no others, which are contrasted alone."""

import json

import numpy as np
import pytest
import torch

from mirror_rt import ConfigError, Encoder
from mirror_train import TrainConfig, TrainingData, load_recipe, tune
from mirror_train.data.batches import StepBatch
from mirror_train.loss import infonce, soft_targets
from mirror_train.training.teacher import Teacher
from mirror_train.training.teacher_model import known_languages

RECIPE = load_recipe("joint-teacher")
TAUGHT, TAGS = 60, [("en", "en")] * 40 + [("fr", "en")] * 20 + [("fr", "fr")] * 36


@pytest.fixture
def teacher(tiny_bundle, tmp_path, monkeypatch):
    """A teacher that knows English, by a table of languages."""
    folder = tiny_bundle("roberta")
    base = json.loads((folder / "mirror.json").read_text())["base_model"]["name"]
    (tmp_path / "own.toml").write_text(f'[bases.own]\nmodel = "{base}"\nlanguages = ["en"]\n')
    monkeypatch.setenv("MIRROR_RT_RECIPES", str(tmp_path / "own.toml"))
    return folder


@pytest.fixture
def run(words, tiny_bert, tmp_path, teacher):
    """run(out) tunes the tiny BERT on pairs, of which the teacher reads the English words."""

    def train(out, tags=TAGS, changes=None, language=None, **options):
        pairs = list(zip(words[:96], words[96:192], strict=True))
        data = TrainingData.of_pairs(pairs, "pairs", languages=tags, language=language)
        config = TrainConfig(
            out=tmp_path / out, teacher=teacher, model=str(tiny_bert), precision="fp32",
            recipe=RECIPE.replace(batch_size=24, **(changes or {})), **options,
        )  # fmt: skip
        return tune(data, config)

    return train


def reference(views, vectors, taught, ids, temperature, weight):
    """Return the loss in float64, by plain PyTorch."""
    z = torch.nn.functional.normalize(torch.cat(views).double(), dim=1)
    count, n = len(z), len(z) // 2
    scores = z @ z.T / temperature
    groups = ids.repeat(2)
    same = groups[:, None] == groups[None]
    partner = torch.arange(count).roll(n)
    candidates = scores.masked_fill(same, -torch.inf)
    positives = scores[torch.arange(count), partner]
    plain = (torch.logaddexp(candidates.logsumexp(1), positives) - positives).mean()
    both = torch.cat([taught, taught + n])
    t = torch.nn.functional.normalize(vectors.double(), dim=1).repeat(2, 1)
    out = same[both][:, both]
    q = scores[both][:, both].masked_fill(out, -torch.inf).log_softmax(1)
    p = (t @ t.T / temperature).masked_fill(out, -torch.inf).log_softmax(1)
    soft = torch.where(out, 0, p.exp() * (p - q).nan_to_num()).sum(1).mean()
    return (1 - weight) * plain + weight * soft


def test_the_loss_has_soft_targets_for_the_rows_that_were_read_and_contrasts_all():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(14, 8, generator=generator).requires_grad_()
    vectors = torch.randn(4, 5, generator=generator)
    rows = np.array([9, 0, -1, 2, 1, -1, 3, -1])
    batch = StepBatch(["x"] * 14, 2, np.array([0, 1, 2, 3, 0, 4, 5]), np.arange(1, 8))
    loss = Teacher(rows, vectors, {}).loss(z, batch, RECIPE)
    taught = torch.tensor([0, 2, 3, 5])
    ids = torch.from_numpy(batch.group_ids)
    exact = z.detach().clone().requires_grad_()
    wanted = reference(exact.chunk(2), vectors[[0, 2, 1, 3]], taught, ids, 0.1, 0.5)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-6)
    loss.backward()
    wanted.backward()
    torch.testing.assert_close(z.grad, exact.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "ids"), [([0, -1, -1], [0, 1, 2]), ([0, 1, -1], [0, 0, 2]), ([-1, -1, -1], None)]
)
def test_rows_with_none_to_be_compared_with_are_contrasted_alone(rows, ids):
    z = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    groups = None if ids is None else np.array(ids)
    batch = StepBatch(["x"] * 6, 2, groups, np.arange(3))
    loss = Teacher(np.array(rows), torch.eye(2), {}).loss(z, batch, RECIPE)
    of = None if ids is None else torch.tensor(ids)
    assert loss == 0.5 * infonce(*z.chunk(2), temperature=0.1, group_ids=of)


def test_a_batch_that_was_read_whole_has_the_fused_loss():
    z = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    batch = StepBatch(["x"] * 6, 2, None, np.arange(3))
    loss = Teacher(np.array([2, 0, 1]), torch.eye(3), {}).loss(z, batch, RECIPE)
    wanted = soft_targets(z.chunk(2), torch.eye(3)[[2, 0, 1]], temperature=0.1, weight=0.5)
    assert loss == wanted


def test_a_teacher_reads_the_strings_of_its_languages_and_a_killed_run_goes_on(
    run, words, monkeypatch, crash_at
):
    read, encode = [], Encoder.encode
    monkeypatch.setattr(
        Encoder, "encode", lambda self, texts, **o: read.extend(texts) or encode(self, texts, **o)
    )
    whole = run("whole")
    assert read == words[:40] + words[136:156]  # of two texts, the one in English
    found = whole.manifest.training["teacher"]
    assert found["strings"] == TAUGHT
    with crash_at(2):
        run("parts", checkpoint_every=1)
    parts = run("parts", checkpoint_every=1, resume=True)
    assert (parts.out / "model.safetensors").read_bytes() == (
        whole.out / "model.safetensors"
    ).read_bytes()


def test_a_run_of_which_the_teacher_has_read_another_part_is_refused(run, crash_at, tmp_path):
    with crash_at(2):
        run("out", checkpoint_every=1)
    with pytest.raises(ConfigError, match="data was"):
        run("out", tags=[*TAGS[:39], (None, None), *TAGS[40:]], checkpoint_every=1, resume=True)
    table = tmp_path / "own.toml"
    table.write_text(table.read_text().replace('["en"]', '["fr"]'))
    with pytest.raises(ConfigError, match="taught was 60, now 56"):
        run("out", checkpoint_every=1, resume=True)


def test_what_cannot_be_learned_is_refused(run):
    with pytest.raises(ConfigError, match="teacher_weight has to be below 1, for 36 pairs of"):
        run("out", changes={"teacher_weight": 1.0})
    with pytest.raises(ConfigError, match="knows en by the table of languages, and no string"):
        run("out", tags=[("fr", None)] * 96)


def test_a_warning_tells_of_strings_in_another_language(run, caplog):
    run("out", tags=None, language="fr")
    assert "is for en, and the strings of pairs are 'fr'" in caplog.text


def test_the_languages_of_a_teacher_are_those_of_its_base_model(run, teacher, tiny_bert, tmp_path):
    def known(name):
        return known_languages(TrainConfig(out=tmp_path, recipe=RECIPE, teacher=name))

    assert known(teacher) == {"en"}
    assert known(tiny_bert) == frozenset()
    tuned = run("tuned").out
    assert known(tuned) == frozenset()
    row = f'[bases.own]\nmodel = "{tiny_bert.name}"\nlanguages = ["fr"]\n'
    (tmp_path / "own.toml").write_text(row)
    assert known(tuned) == {"fr"}
