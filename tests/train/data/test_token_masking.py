"""Spans of tokens as the masked view (BERT-CF, section 4.1)."""

import numpy as np
import pytest

from mirror_rt import ConfigError
from mirror_rt.tokens.padding import RaggedTokens
from mirror_train import TrainingData, load_recipe
from mirror_train.compute.precision import resolve_device
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.data.views import mask_token_spans
from mirror_train.model.pretrained import load_pretrained
from mirror_train.training.mirror import ViewTokenizer

CLS, SEP, MASK = 2, 3, 4


def mask(sequences, draws, *, probability=0.3, most=5):
    return [
        masked.ids[a:b].tolist()
        for masked in [
            mask_token_spans(
                RaggedTokens.from_lists(sequences),
                np.array(draws, dtype=np.float64).reshape(-1, 2),
                probability=probability,
                most=most,
                mask_id=MASK,
                special_ids={CLS, SEP},
            )
        ]
        for a, b in masked.spans()
    ]


def test_the_last_sequences_get_one_span_and_keep_their_length():
    text = [CLS, *range(10, 22), SEP]
    first, second = mask([text, text], [(0.6, 0.0)])  # 1 - 0.7^2 = 0.51 < 0.6 < 1 - 0.7^3 = 0.66
    assert first == text
    assert second == [CLS, MASK, MASK, MASK, *range(13, 22), SEP]
    (last,) = mask([text], [(0.6, 0.999999)])
    assert last == [CLS, *range(10, 19), MASK, MASK, MASK, SEP]


def test_lengths_are_geometric_and_capped(rng):
    text = [CLS, *range(10, 40), SEP]
    draws = rng.random((5000, 2))
    found = [row.count(MASK) for row in mask([text] * len(draws), draws)]
    expected = [0.3 * 0.7**k for k in range(4)] + [0.7**4]
    np.testing.assert_allclose(
        np.bincount(found, minlength=6)[1:] / len(found), expected, atol=0.02
    )


def test_scattered_tokens_are_masked_at_random_places(rng):
    """Footnote 13, "random token masking": k tokens, which need not stand together."""
    tokens = RaggedTokens(np.tile([9, 1, 2, 3, 4, 5, 6, 8], 200), np.arange(201) * 8)
    options = {"probability": 0.3, "most": 2, "mask_id": 7, "special_ids": {8, 9}}
    masked = mask_token_spans(tokens, rng.random((200, 2)), scattered=True, **options)
    rows = masked.ids.reshape(200, 8) == 7
    assert (rows.sum(axis=1) == 2).all()
    assert rows[:, [0, 7]].sum() == 0
    apart = [np.diff(np.flatnonzero(row))[0] for row in rows]
    assert {*apart} == {1, 2, 3, 4, 5}


def test_every_place_is_drawn_equally_often(rng):
    text = [CLS, 10, 11, 12, 13, SEP]
    rows = mask([text] * 3000, np.stack([np.zeros(3000), rng.random(3000)], axis=1))
    places = np.bincount([row.index(MASK) for row in rows], minlength=6)
    np.testing.assert_allclose(places / 3000, [0, 0.25, 0.25, 0.25, 0.25, 0], atol=0.03)


def test_never_more_than_half():
    draws = [(0.9999, 0.5)]
    assert mask([[CLS, 10, SEP]], draws) == [[CLS, 10, SEP]]
    assert mask([[CLS, 10, 11, SEP]], draws)[0].count(MASK) == 1
    assert mask([[CLS, 10, 11, 12, 13, 14, SEP]], draws)[0].count(MASK) == 2


def batches(recipe, *, rank=0, count=1, mask_token="[MASK]"):
    strings = [f"old town number {i} on the river" for i in range(40)]
    return Batches(
        TrainingData(strings, strings, None, "strings"),
        recipe,
        loss_batch=8,
        seed=1,
        mask_token=mask_token,
        processes=Processes(resolve_device("cpu"), rank, count),
    )


def test_a_batch_as_tokens(tiny_bert):
    base = load_pretrained(tiny_bert)
    recipe = load_recipe("cf").replace(epochs=1, batch_size=8)
    batch = batches(recipe)[0]
    assert batch.texts[:8] == batch.texts[8:]
    tokens = ViewTokenizer(base, recipe)(batch).tokens
    rows = [tokens.ids[a:b] for a, b in tokens.spans()]
    for plain, masked in zip(rows[:8], rows[8:], strict=True):
        changed = np.flatnonzero(plain != masked)
        assert 1 <= len(changed) <= 5
        assert (np.diff(changed) == 1).all()
        assert (masked[changed] == base.hf_tokenizer.mask_token_id).all()
        assert changed[0] > 0
        assert changed[-1] < len(plain) - 1
    assert len({tuple(np.flatnonzero(a != b)) for a, b in zip(rows[:8], rows[8:], strict=True)}) > 1


def test_span_length_0_is_simcses_view(tiny_bert):
    recipe = load_recipe("cf").replace(epochs=1, batch_size=8, span_length=0)
    batch = batches(recipe)[0]
    tokens = ViewTokenizer(load_pretrained(tiny_bert), recipe)(batch).tokens
    rows = [tokens.ids[a:b].tolist() for a, b in tokens.spans()]
    assert rows[:8] == rows[8:]


def test_the_spans_do_not_depend_on_the_number_of_processes():
    recipe = load_recipe("cf").replace(epochs=1, batch_size=8)
    whole = batches(recipe)[3].span_draws
    halves = [batches(recipe, rank=rank, count=2)[3].span_draws for rank in (0, 1)]
    np.testing.assert_array_equal(whole, np.concatenate(halves))
    assert (whole != batches(recipe)[4].span_draws).all()


def test_a_tokenizer_without_a_mask_token():
    recipe = load_recipe("cf").replace(epochs=1, batch_size=8)
    with pytest.raises(ConfigError, match="no mask token: pass --span-length 0"):
        batches(recipe, mask_token=None)[0]


def test_the_probability_is_checked():
    for value in (0, 1):
        with pytest.raises(ConfigError, match="span_probability must be greater than 0 and less"):
            load_recipe("cf").replace(span_probability=value)
