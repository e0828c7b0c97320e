"""Hard negatives: which pairs are the nearest of a pair, and how they come into its batch."""

import numpy as np
import pytest
import torch

from mirror_train import TrainingData, load_recipe
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.data.neighbours import beside_neighbours, distinct_texts, nearest_negatives

COUNT = 54  # pairs, all of which are looked at


def unit_vectors(rng, texts):
    vectors = rng.standard_normal((len(texts), 8)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_hand(units, sides, count, group_ids, margin):
    """Compare each pair with every other one, as the docstring says."""
    found = []
    for a, b in sides.T:
        near = []
        for other, (c, d) in enumerate(sides.T):
            cosines = [float(units[x] @ units[y]) for x in (a, b) for y in (c, d)]
            shares = {a, b} & {c, d} or group_ids[len(found)] == group_ids[other]
            false = margin is not None and max(cosines) >= float(units[a] @ units[b]) - margin
            if not (shares or false):
                near.append((-sum(cosines), other))
        best = [other for _, other in sorted(near)[:count]]
        found.append(best + [-1] * (count - len(best)))
    return np.array(found)


@pytest.mark.parametrize("margin", [None, 0.0, 0.4])
def test_the_nearest_pairs_are_those_of_every_comparison(margin):
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(COUNT)]
    pairs = [(word, words[(i * 7) % 50]) for i, word in enumerate(words)]
    texts, sides = distinct_texts(*zip(*pairs, strict=True))
    ids = np.arange(COUNT) // 3
    units = unit_vectors(rng, texts)
    found = nearest_negatives(units, sides, 4, group_ids=ids, margin=margin)
    assert np.array_equal(found, by_hand(units, sides, 4, ids, margin))
    assert (found[:, 0] >= 0).any()
    assert margin is None or (found < 0).any()


def test_pairs_without_others_have_no_negatives():
    texts, sides = distinct_texts(["a", "b"], ["b", "c"])
    assert texts == ["a", "b", "c"]
    found = nearest_negatives(np.eye(3, dtype=np.float32), sides, 2)
    assert found.tolist() == [[-1, -1], [-1, -1]]


def test_neighbours_follow_once_each():
    neighbours = np.array([[2, -1], [0, 3], [0, 1], [1, -1]])
    assert beside_neighbours(np.array([3, 0, 1, 2]), neighbours).tolist() == [3, 1, 0, 2]


def test_an_epoch_has_every_string_once_beside_its_neighbours():
    words = [f"w{i}" for i in range(40)]
    data = TrainingData(words, words, None, "words")
    neighbours = np.arange(40)[:, None] ^ 1
    recipe = load_recipe("word").replace(batch_size=8)
    batches = Batches(
        data, recipe, loss_batch=8, seed=1, mask_token=None,
        processes=Processes(torch.device("cpu")), neighbours=neighbours,
    )  # fmt: skip
    epochs = [[batches[5 * epoch + step].rows for step in range(5)] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(np.concatenate(epoch).tolist()) == list(range(40))
        assert all({*rows} == {*(rows ^ 1)} for rows in epoch)
    assert not np.array_equal(epochs[0], epochs[1])
