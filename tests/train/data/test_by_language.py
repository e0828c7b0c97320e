"""Batches of one language: which pairs share one, and which must not."""

import itertools

import numpy as np
import pytest
import torch

from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.data.by_language import by_language, numbered_languages
from mirror_train.data.training_data import TrainingData
from mirror_train.languages.joint import joint_data
from mirror_train.recipes.recipe import load_recipe

ALONE = Processes(torch.device("cpu"))
BATCH = 8
RECIPE = load_recipe("word").replace(batch_size=BATCH, epochs=2)


def words(tag, n):
    texts = [f"{tag}{i}" for i in range(n)]
    return TrainingData(texts, texts, None, tag, language=tag)


def joined(**sizes):
    return joint_data({tag: words(tag, n) for tag, n in sizes.items()}, temperature=1, seed=0)


def rows_of(data, *, seed=1, processes=ALONE):
    batches = Batches(
        data, RECIPE, loss_batch=BATCH, seed=seed, mask_token=None, processes=processes
    )
    return [batches[step].rows for step in range(len(batches))]


@pytest.mark.parametrize("sizes", [{"en": 81, "fr": 40, "ru": 19}, {"en": 16, "fr": 16}])
@pytest.mark.parametrize("seed", [1, 2])
def test_most_batches_have_one_language(sizes, seed):
    data = joined(**sizes)
    batches = rows_of(data, seed=seed)
    half = len(batches) // 2
    for epoch in (batches[:half], batches[half:]):
        rows = np.concatenate(epoch).tolist()
        assert len({*rows}) == len(rows) >= len(data) - 1  # a pair alone has no negatives
        mixed = [len({data.languages[row] for row in batch}) > 1 for batch in epoch]
        assert sum(mixed) < len(sizes)
    assert [one.tolist() for one in batches] == [one.tolist() for one in rows_of(data, seed=seed)]
    assert not np.array_equal(batches[0], batches[half])


def test_batches_of_a_language_do_not_follow_each_other():
    data = joined(en=80, fr=80)
    first = [data.languages[rows[0]] for rows in rows_of(data)[:20]]
    changes = sum(a != b for a, b in itertools.pairwise(first))
    assert changes > 4


def test_a_dictionary_is_one_language_in_either_direction():
    pairs = [(f"a{i}", f"b{i}") for i in range(16)] + [(f"c{i}", f"d{i}") for i in range(16)]
    tags = [("en", "fr")] * 8 + [("fr", "en")] * 8 + [("en", "ru")] * 16
    found = numbered_languages(TrainingData.of_pairs(pairs, "pairs", languages=tags), BATCH)
    assert found.tolist() == [0] * 16 + [1] * 16
    for same in (None, [("en", "fr")] * 32):
        data = TrainingData.of_pairs(pairs, "pairs", languages=same)
        assert numbered_languages(data, BATCH) is None


def test_copies_of_few_pairs_are_spread():
    """A batch of them would be nearly one pair, which has no negatives."""
    entries = [("river", "rivière"), ("river", "fleuve"), ("stream", "fleuve")]
    sources = {"en": words("en", 100), "ru": words("ru", 100), "en-fr": entries}
    data = joint_data(sources, temperature=4, seed=0)
    assert data.languages.count(("en", "fr")) > 30
    for rows in rows_of(data):
        assert sum(data.languages[row] == ("en", "fr") for row in rows) < BATCH
    few = joint_data({"en-fr": entries, "en-ru": [("a", "b")]}, temperature=1, seed=0, pairs=64)
    assert {*numbered_languages(few, BATCH).tolist()} == {-1}
    order = np.arange(64)[::-1]
    unknown = np.full(64, -1)
    assert by_language(order, unknown, BATCH, np.random.default_rng(0)) is order


@pytest.mark.parametrize("n", [1, BATCH - 1, BATCH])
def test_an_epoch_of_at_most_a_batch(n):
    order, languages = np.arange(n)[::-1], np.zeros(n, dtype=np.int64)
    assert by_language(order, languages, BATCH, np.random.default_rng(0)).tolist() == order.tolist()


def test_a_run_with_other_languages_is_another_run():
    """A checkpoint of it would go on with other batches."""
    pairs = [("river", "rio"), ("stream", "arroyo")]
    hashes = {
        TrainingData.of_pairs(pairs, "pairs", languages=tags).sha256()
        for tags in (None, [("en", "es")] * 2, [("en", "pt")] * 2)
    }
    assert len(hashes) == 3


def test_a_neighbour_in_another_language_shares_the_batch():
    data = joined(en=40, fr=40)
    neighbours = ((np.arange(80) + 40) % 80)[:, None]
    batches = Batches(data, RECIPE, loss_batch=BATCH, seed=1, mask_token=None, processes=ALONE,
                      neighbours=neighbours)  # fmt: skip
    for step in range(10):
        rows = batches[step].rows
        assert {*rows.tolist()} == {*neighbours[rows, 0].tolist()}


def test_a_language_whose_pairs_are_one_chain_keeps_negatives():
    """Each chain has a twelfth of all pairs, and a batch of its language would have no others."""
    tags = [f"{a}{b}" for a in "abc" for b in "defg"]
    pairs = [(f"{tag}{i}", f"{tag}{i + 1}") for tag in tags for i in range(24)]
    languages = [(tag, tag) for tag in tags for _ in range(24)]
    data = TrainingData.of_pairs(pairs, "chains", languages=languages)
    batches = Batches(data, RECIPE, loss_batch=BATCH, seed=1, mask_token=None, processes=ALONE)
    for step in range(len(batches)):
        assert len({*batches[step].group_ids}) > 2
