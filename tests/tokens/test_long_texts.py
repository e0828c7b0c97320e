"""Texts of more tokens than the model takes: cut, refused or chunked, and never in silence."""

import logging

import numpy as np
import pytest

from mirror_rt import ConfigError, Encoder, InvalidTextError
from mirror_rt.tokens import chunking

LIMIT = 128
SHORT = ["the river", "a road"]
LONG = "the river runs through the old town " * 40


@pytest.fixture(scope="module")
def encoder(bundle):
    return Encoder.load(bundle, providers="native")  # equal bits in any batch


@pytest.fixture(scope="module")
def roberta(tiny_bundle):
    return Encoder.load(tiny_bundle("roberta"), providers="native")


def run_ids(encoder, rows):
    """Vectors of rows of token ids, straight from the model."""
    from mirror_rt.tokens.padding import RaggedTokens

    tokens = RaggedTokens.from_lists([list(row) for row in rows])
    return np.concatenate(
        [encoder.pipeline.model.run_batch(tokens.pad(np.array([i]), pad_id=0), normalize=True)
         for i in range(len(rows))]
    )  # fmt: skip


def chunked_by_hand(encoder, text, prompt=""):
    """The definition: windows of the limit, then the mean weighted by length, renormalised.

    Also returns the rows, and what float32 may lose: in the sum over them, whose norm is below 1,
    and in the unit vector of 32 numbers.
    """
    tokenizer = encoder.pipeline.tokenizer._tokenizer
    tokenizer.no_truncation()
    whole = tokenizer.encode(prompt + text).ids
    own = len(tokenizer.encode(prompt).ids) - 2 if prompt else 0
    tokenizer.enable_truncation(LIMIT)
    first, last, ids = whole[0], whole[-1], whole[1 + own : -1]
    room = LIMIT - 2 - own
    parts = [ids[i : i + room] for i in range(0, len(ids), room)]
    rows = [[first, *whole[1 : 1 + own], *part, last] for part in parts]
    mean = np.average(run_ids(encoder, rows), axis=0, weights=[len(part) for part in parts])
    norm = np.linalg.norm(mean)
    return mean / norm, rows, (2 * (len(rows) + 2) / norm + 32 / 2 + 2) * 2**-24


@pytest.mark.parametrize("family", ["encoder", "roberta"])
@pytest.mark.parametrize("prompt", ["", "a word:"])
def test_chunks_are_windows_and_their_weighted_mean(request, family, prompt):
    encoder = request.getfixturevalue(family)
    text = LONG * 8 + "the end"  # more characters than are tokenised at once
    assert len(text) > encoder.pipeline.tokenizer.clip_characters
    expected, rows, rounding = chunked_by_hand(encoder, text, prompt)
    found = encoder.encode_with_info([SHORT[0], text, SHORT[1]], on_too_long="chunk", prompt=prompt)
    assert found.chunks.tolist() == [1, len(rows), 1]
    assert found.token_counts[1] == sum(map(len, rows))
    assert not found.truncated.any()
    np.testing.assert_allclose(found.embeddings[1], expected, rtol=0, atol=rounding)
    neighbours = encoder.encode(SHORT, prompt=prompt)
    np.testing.assert_array_equal(found.embeddings[[0, 2]], neighbours)


def test_a_text_that_fits_is_the_same_in_every_mode(encoder):
    texts = [*SHORT, "word " * (LIMIT - 2)]
    expected = encoder.encode(texts)
    for mode in ("truncate", "truncate-left", "error", "chunk"):
        np.testing.assert_array_equal(encoder.encode(texts, on_too_long=mode), expected)


def test_chunks_with_fewer_dimensions_and_without_normalising(encoder):
    full = encoder.encode(LONG, on_too_long="chunk", normalize_embeddings=False)
    cut = encoder.encode(LONG, on_too_long="chunk", normalize_embeddings=False, truncate_dim=8)
    np.testing.assert_array_equal(cut, full[:8])
    assert abs(np.linalg.norm(full) - 1) > 0.01
    unit = encoder.encode(LONG, on_too_long="chunk", truncate_dim=8)
    whole = encoder.encode(LONG, on_too_long="chunk")[:8]
    expected = whole / np.linalg.norm(whole.astype(float))
    rounding = (32 / 2 + 2 + 8 / 2 + 2) * 2**-24  # of one unit vector, and of the other
    np.testing.assert_allclose(unit, expected, rtol=0, atol=rounding)


def test_an_error_names_the_text(encoder):
    with pytest.raises(InvalidTextError, match="item 1: it is longer than 128 tokens") as caught:
        encoder.encode([SHORT[0], LONG, SHORT[1], LONG], on_too_long="error")
    assert [i for i, _ in caught.value.items] == [1, 3]
    vectors = encoder.encode([SHORT[0], LONG], on_too_long="error", errors="nan")
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True]


def test_no_silent_truncation(bundle, caplog):
    encoder = Encoder.load(bundle)
    with caplog.at_level(logging.INFO, "mirror_rt"):
        for _ in range(2):
            info = encoder.encode_with_info([*SHORT, LONG], False)
            encoder.encode([*SHORT, LONG], show_progress_bar=False, on_too_long="chunk")
    assert info.truncated.tolist() == [False, False, True]
    assert info.token_counts.tolist() == [4, 4, LIMIT]
    assert caplog.messages == [
        "1 of 3 texts are longer than 128 tokens and were cut there (said once)",
        "1 of 3 texts are longer than 128 tokens and were encoded in 3 chunks (said once)",
    ]


def test_texts_that_the_model_does_not_know_are_said(bundle, caplog):
    encoder = Encoder.load(bundle)
    encoder.encode([*SHORT, "ሰላም ዓለም"])  # too little to tell
    assert not caplog.messages
    for _ in range(2):
        encoder.encode(["ሰላም ዓለም"] * 40)
    assert caplog.messages == [
        "80 of 80 tokens of these texts are unknown to the model, which was not made for their "
        "language or script: its vectors say little (said once)"
    ]


def test_info_of_texts_that_cannot_be_encoded(encoder):
    info = encoder.encode_with_info(["", SHORT[0], None], errors="nan")
    assert info.token_counts.tolist() == [0, 4, 0]
    assert info.chunks.tolist() == [0, 1, 0]
    assert np.isnan(info.embeddings[:, 0]).tolist() == [True, False, True]
    assert encoder.encode_with_info(SHORT[0]).embeddings.shape == (1, 32)


def test_chunks_are_bounded(encoder, monkeypatch):
    monkeypatch.setattr(chunking, "MOST_CHARACTERS", 1000)
    with pytest.raises(InvalidTextError, match="item 1: it has 1,440 characters, more than the 1"):
        encoder.encode([SHORT[0], LONG], on_too_long="chunk")


def test_white_space_alone_makes_no_chunks(encoder):
    text = "the river" + " " * 300_000 + "runs"
    found = encoder.encode_with_info([text], on_too_long="chunk")
    assert found.chunks.tolist() == [1]
    assert not found.truncated[0]
    np.testing.assert_array_equal(found.embeddings[0], encoder.encode("the river runs"))


@pytest.mark.parametrize("prompt", ["", "the word "])
@pytest.mark.parametrize("mark", [" ", "\n", "\u200b"])
@pytest.mark.parametrize("many", [7_900, 8_200, 40_000, 600_000])
def test_characters_that_give_no_tokens_do_not_count(encoder, mark, many, prompt):
    """However many they are, at the end of a text that is cut on the left, or before another."""
    blanks = mark * many
    for texts, how in (
        ((LONG, LONG + blanks), "truncate-left"),
        ((LONG, blanks + LONG), "truncate"),
        (("river", blanks + "river"), "truncate"),
        (("the river", "the river" + blanks), "truncate-left"),
    ):
        plain, found = (
            encoder.encode_with_info([text], on_too_long=how, prompt=prompt) for text in texts
        )
        np.testing.assert_array_equal(found.embeddings, plain.embeddings)
        assert found.token_counts.tolist() == plain.token_counts.tolist()


@pytest.mark.parametrize("how", ["truncate", "truncate-left", "chunk", "error"])
def test_very_many_characters_without_tokens_are_as_few(encoder, how):
    found = encoder.encode(["\u200b" * 600_000, "the river"], on_too_long=how)
    np.testing.assert_array_equal(found, encoder.encode(["\u200b", "the river"]))


@pytest.mark.parametrize("prompt", ["", "the word "])
@pytest.mark.parametrize("dropped", [LIMIT, 500_000])
def test_the_last_tokens_of_a_text(encoder, prompt, dropped):
    found = encoder.encode_with_info(
        ["river " * dropped + "the old town " * LIMIT], on_too_long="truncate-left", prompt=prompt
    )
    assert (found.truncated.tolist(), found.token_counts.tolist()) == ([True], [LIMIT])
    first, *words, last = encoder.tokenize(["the old town"])[0]
    before = encoder.tokenize([prompt])[0][1:-1] if prompt else []
    own = (words * LIMIT)[len(before) + 2 - LIMIT :]
    expected = run_ids(encoder, [[first, *before, *own, last]])
    np.testing.assert_array_equal(found.embeddings, expected)


def test_bad_mode(encoder):
    with pytest.raises(ConfigError, match=r"must be 'truncate', 'truncate-left', .* got 'cut'"):
        encoder.encode(SHORT, on_too_long="cut")
