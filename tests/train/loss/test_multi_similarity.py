"""Multi-similarity on hard triplets: against its formula, and against the library of its field."""

import math

import pytest
import torch
from pytorch_metric_learning import losses, miners

from mirror_rt import ConfigError, DataError
from mirror_rt.bundle.manifest import Manifest
from mirror_train import load_recipe, load_training_data
from mirror_train.loss import multi_similarity
from rounding import HALF_UNIT, of_cosines, of_losses

DEFAULTS = {"alpha": 1.0, "beta": 60.0, "base": 0.5, "margin": 0.2}


def views(n, d, *, noise=0.8, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    z[1] = z[0] + noise * z[1]
    return z[0].to(dtype), z[1].to(dtype)


@pytest.mark.parametrize("options", [{}, {"alpha": 2.0, "beta": 50.0, "base": 0.4, "margin": 0.0}])
@pytest.mark.parametrize("grouped", [False, True])
def test_loss_and_gradient_are_those_of_pytorch_metric_learning(options, grouped):
    """Of the library that SapBERT's code takes."""
    z1, z2 = views(40, 16)
    groups = torch.arange(40) // (3 if grouped else 1)
    ours, theirs = (torch.cat([z1, z2]).requires_grad_() for _ in range(2))
    labels = torch.cat([groups, groups])
    *settings, margin = (DEFAULTS | options).values()
    miner = miners.TripletMarginMiner(margin=margin, type_of_triplets="all")
    expected = losses.MultiSimilarityLoss(*settings)(theirs, labels, miner(theirs, labels))
    got = multi_similarity(*ours.chunk(2), group_ids=groups if grouped else None, **options)
    torch.testing.assert_close(got, expected, rtol=0, atol=of_losses(16, 1 / 60))
    got.backward()
    expected.backward()
    # The weights of a row and of its columns add up to 4, and are exponentials of 60 cosines.
    error = 4 * 2 * 60 * of_cosines(16) / float(torch.cat([z1, z2]).norm(dim=1).min())
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=error)


def test_without_a_hard_triplet_there_is_nothing_to_learn():
    z = torch.eye(6, dtype=torch.float64).requires_grad_()  # views alike, strings at right angles
    loss = multi_similarity(z, z)
    loss.backward()
    assert loss == 0
    assert z.grad.abs().max() == 0


def test_lower_precisions_are_computed_in_float32():
    z1, z2 = views(50, 64)
    for dtype in (torch.float32, torch.bfloat16):
        halves = [z.to(dtype).requires_grad_() for z in (z1, z2)]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not torch.float32):
            loss = multi_similarity(*halves)
        loss.backward()
        assert (loss.dtype, halves[0].grad.dtype) == (torch.float32, dtype)
        exact = multi_similarity(*(z.detach().double() for z in halves))
        error = of_losses(64, 1 / 60, HALF_UNIT)
        torch.testing.assert_close(loss.detach().double(), exact, rtol=0, atol=error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, "alpha must be greater than 0, got 0"),
        ({"beta": -1}, "beta must be greater than 0, got -1"),
        ({"base": math.nan}, "base must be a finite number, got nan"),
        ({"group_ids": torch.zeros(4, dtype=torch.int64)}, "all pairs have one group id"),
    ],
)
def test_what_cannot_be_used(options, message):
    with pytest.raises(ValueError, match=message):
        multi_similarity(*views(4, 3), **options)


def test_recipes_keep_the_fields_of_other_losses_apart():
    recipe = load_recipe("mirror-ms")
    assert (recipe.ms_alpha, recipe.ms_beta, recipe.ms_base, recipe.triplet_margin) == tuple(
        DEFAULTS.values()
    )
    for changes, message in [
        ({"temperature": 0.04}, "temperature must be 1 with the loss multi_similarity"),
        ({"loss": "ntxent", "ms_beta": 50.0}, "ms_beta goes with the loss multi_similarity"),
        ({"ms_beta": 0}, "ms_beta must be greater than 0"),
        ({"ms_base": 2}, "ms_base must be a cosine"),
    ]:
        with pytest.raises(ConfigError, match=message):
            recipe.replace(**changes)


SYNONYMS = """D1\theart attack
D1\tmyocardial infarction
D1\tcardiac infarction
D2\tfever
D2\tpyrexia
D3\tstroke
D3\tapoplexy
D4\talone
D1\theart attack
"""


def write(tmp_path, text, name="synonyms.tsv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_synonyms_become_pairs_of_a_concept(tmp_path, caplog):
    with caplog.at_level("INFO"):
        data = load_training_data(write(tmp_path, SYNONYMS), data_format="synonyms")
    pairs = list(zip(data.first, data.second, strict=True))
    assert pairs[:3] == [("heart attack", "myocardial infarction"),
                         ("heart attack", "cardiac infarction"),
                         ("myocardial infarction", "cardiac infarction")]  # fmt: skip
    assert pairs[3:] == [("fever", "pyrexia"), ("stroke", "apoplexy")]
    assert data.group_ids == [0, 0, 0, 1, 2]
    assert data.duplicates == 1
    assert "5 pairs of 3 concepts; left out: 1 concepts with one name" in caplog.text


def test_the_forms_of_a_synonym_list(tmp_path):
    expected = load_training_data(write(tmp_path, SYNONYMS), data_format="synonyms").sha256()
    rows = [line.split("\t") for line in SYNONYMS.splitlines()]
    bars = "".join(f"{a}||{b}\n" for a, b in rows)
    table = "mention\tconcept_id\n" + "".join(f"{b}\t{a}\n" for a, b in rows) + "both\tD1|D2\n"
    for name, text in [("bars.txt", bars), ("table.tsv", table)]:
        data = load_training_data(write(tmp_path, text, name), data_format="synonyms")
        assert data.sha256() == expected
    many = "".join(f"D{i // 20}\tname {i}\n" for i in range(40))  # 190 pairs of each concept
    data = load_training_data(write(tmp_path, many), data_format="synonyms")
    assert len(data) == 100
    assert data.group_ids == [0] * 50 + [1] * 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("D1 heart attack\n", "line 1: 1 cells, expected at least 2"),
        ("D1\tfever\nD2\t\n", "line 2: expected a concept id, a tab and a name"),
        ("\tfever\n", "line 1: expected a concept id"),
        ("D1\tfever\thigh\n", "line 1: expected a concept id"),
        ("D1||fever\nD2\n", r"line 2: expected ID\|\|name"),
        ("mention\tconcept_id\nfever\t\n", "line 2: no concept id"),
        ("name of it\tconcept_id\nfever\tD1\n", "has no mentions"),
        ("D1\tfever\nD2\tcough\n", "no concept has two different names"),
        ("D1\tfever\nD1\tfever\n", "no concept has two different names"),
    ],
)
def test_unusable_synonym_lists(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        load_training_data(write(tmp_path, text), data_format="synonyms")


def test_tuning_on_synonyms(tiny_bert, words, tmp_path, succeed):
    """From a list to a folder; names of one concept share a word, which is soon found out."""
    names = [f"{words[i // 4]} {words[100 + i]} {words[i // 4]}" for i in range(120)]
    lines = [f"D{i // 4}\t{name}\n" for i, name in enumerate(names)]
    path = write(tmp_path, "".join(lines))
    options = ["--span-length", 0, "--epochs", 13, "--batch-size", 60, "--learning-rate", 2e-3]
    done = succeed("tune", "--recipe", "mirror-ms", "--data", path, "--data-format", "synonyms",
                   "--model", tiny_bert, "--out", tmp_path / "out", "--precision", "fp32",
                   "--pooling", "mean", *options)  # fmt: skip
    assert "180 strings (0 blank and 0 repeated lines dropped)" in done.out
    manifest = Manifest.read(tmp_path / "out", "mirror_rt encoder")
    assert manifest.recipe["loss"] == "multi_similarity"
    assert manifest.training["loss_last"] < 0.5 * manifest.training["loss_first"]
