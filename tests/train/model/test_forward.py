from typing import get_args

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from mirror_rt import ConfigError, ModelError
from mirror_rt.bundle.manifest import Pooling
from mirror_train.model.forward import Forward
from mirror_train.model.pooling_head import Head, pool
from mirror_train.model.pretrained import load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from rounding import RUN_ERROR


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("fixture", ["tiny_bert", "tiny_roberta"])
def test_groups_give_what_one_text_at_a_time_gives(fixture, pooling, request, words):
    pretrained = load_pretrained(request.getfixturevalue(fixture))
    texts = words[:40] + [" ".join(words[:k]) for k in (5, 9, 16)]
    tokens = pretrained.text_tokenizer(25).__call__(texts).tokens
    pad_to = 25 if pooling == "mean-with-padding" else None
    options = {"head": Head([pooling]), "pad_id": pretrained.pad_id, "pad_to": pad_to}
    with torch.inference_mode():
        forward = Forward(pretrained.model, device=torch.device("cpu"), **options)
        chunks = forward.chunks(tokens)
        embeddings = forward.embed(tokens, chunks)
        for i in range(len(texts)):
            batch = tokens.pad(np.array([i]), pad_id=pretrained.pad_id, length=pad_to)
            ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
            layers = pretrained.model(
                input_ids=ids, attention_mask=mask, output_hidden_states=True
            ).hidden_states
            hidden = layers[-1]
            if pooling == "cls":
                expected = hidden[0, 0]
            elif pooling == "lasttoken":
                expected = hidden[0, int(mask.sum()) - 1]
            elif pooling == "mean":
                expected = hidden[0, : int(mask.sum())].mean(0)
            elif pooling == "max":
                expected = hidden[0, : int(mask.sum())].amax(0)
            elif pooling == "first-last-avg":
                expected = (layers[1] + hidden)[0, : int(mask.sum())].mean(0) / 2
            elif pooling == "mean-without-special":
                tokenizer = pretrained.hf_tokenizer
                special = [tokenizer.cls_token_id, tokenizer.sep_token_id]
                words_only = [j for j, token in enumerate(ids[0].tolist()) if token not in special]
                expected = hidden[0, words_only].mean(0)
            else:
                assert hidden.shape[1] == 25
                expected = hidden[0].mean(0)
            bound = RUN_ERROR * float(expected.norm())
            torch.testing.assert_close(embeddings[i], expected, atol=bound, rtol=0)
    assert tokens.lengths.sum() <= forward.padded_tokens(tokens, chunks)


def test_an_average_of_layers_is_joined_to_nothing():
    with pytest.raises(ModelError, match="first-last-avg cannot be joined"):
        Head(["cls", "first-last-avg"])


def test_mean_ignores_what_padding_holds(rng):
    hidden = torch.from_numpy(rng.standard_normal((2, 4, 3)))
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    other = hidden.clone()
    other[0, 2:] = 99
    torch.testing.assert_close(pool(hidden, mask, "mean"), pool(other, mask, "mean"))
    assert not torch.equal(
        pool(hidden, mask, "mean-with-padding"), pool(other, mask, "mean-with-padding")
    )


@pytest.mark.parametrize("fixture", ["tiny_bert", "tiny_roberta"])
def test_the_rate_reaches_every_dropout(fixture, request):
    pretrained = load_pretrained(request.getfixturevalue(fixture), dropout=0.37)
    modules = [m for m in pretrained.model.modules() if isinstance(m, torch.nn.Dropout)]
    assert len(modules) >= 5
    assert {m.p for m in modules} == {0.37}
    config = pretrained.model.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.37, 0.37)


def test_no_dropout_makes_both_views_equal(tiny_bert):
    """Attention dropout too is off at rate 0, and on at another: the views show it."""
    ids = torch.tensor([[2, 10, 11, 12, 3]])
    for rate, equal in ((0.0, True), (0.3, False)):
        model = load_pretrained(tiny_bert, dropout=rate).model.train()
        one, two = (model(input_ids=ids).last_hidden_state for _ in range(2))
        assert torch.equal(one, two) is equal


def test_the_mean_with_padding_of_an_untuned_model_is_that_of_the_authors(tiny_bert):
    """Mirror-BERT's evaluation/eval.py: pad and cut to a length; the mean counts all tokens."""
    texts = ["a river", "the old town " * 30]
    tokenizer, model = (one.from_pretrained(tiny_bert) for one in (AutoTokenizer, AutoModel))
    tokens = tokenizer(
        texts, max_length=64, truncation=True, padding="max_length", return_tensors="pt"
    )
    with torch.no_grad():
        expected = model.eval()(**tokens).last_hidden_state.mean(1).numpy()
    encoder = TorchEncoder.load(tiny_bert, pooling="mean-with-padding", pad_to=64)
    found = encoder.encode(texts, normalize_embeddings=False)
    atol = RUN_ERROR * np.linalg.norm(expected, axis=1).max()
    np.testing.assert_allclose(found, expected, atol=atol)
    with pytest.raises(ConfigError, match="was not tuned with mean-with-padding: give the length"):
        TorchEncoder.load(tiny_bert, pooling="mean-with-padding")
