"""An epoch has every pair that it can have: the last batch may be smaller than the others."""

import pytest
import torch

from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches, batch_sizes
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import load_recipe

ALONE = Processes(torch.device("cpu"))
RECIPE = load_recipe("word").replace(batch_size=4, epochs=2)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_what_is_left_out_could_not_be_contrasted(processes):
    for pairs in range(40):
        for batch in range(2 * processes, 20, processes):
            sizes = batch_sizes(pairs, batch, processes)
            left = pairs - sum(sizes)
            assert all(size == batch for size in sizes[:-1])
            assert all(size >= 2 and size % processes == 0 for size in sizes)
            assert 0 <= left < max(2, processes)


def batches_of(data):
    return Batches(data, RECIPE, loss_batch=4, seed=1, mask_token=None, processes=ALONE)


def test_each_epoch_has_all_strings():
    words = [f"word {i}" for i in range(10)]
    batches = batches_of(TrainingData(words, words, None, "words"))
    assert len(batches) == 6
    assert [batches.size(step) for step in range(6)] == [4, 4, 2] * 2
    for epoch in (0, 1):
        steps = [batches[3 * epoch + batch] for batch in range(3)]
        first = [text for one in steps for text in one.texts[: len(one.texts) // 2]]
        assert sorted(first) == sorted(words)
        assert [len(one.texts) for one in steps] == [8, 8, 4]
    assert [batches.seen(steps) for steps in range(8)] == [0, 4, 8, 10, 10, 10, 10, 10]


def test_a_last_batch_whose_pairs_share_strings_has_those_before_it_as_negatives():
    pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "e"), ("e", "f"), ("f", "d")]
    recipe = RECIPE.replace(epochs=20)
    data = TrainingData.of_pairs(pairs, "pairs")
    batches = Batches(data, recipe, loss_batch=4, seed=1, mask_token=None, processes=ALONE)
    sizes = set()
    for step in range(1, len(batches), 2):
        ids = batches[step].group_ids
        assert len(set(ids)) == 2
        sizes.add(len(ids))
    assert sizes == {2, 4}
