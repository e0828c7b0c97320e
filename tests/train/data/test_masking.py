import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_rt import ConfigError
from mirror_rt.masking import mask_span


@given(st.text(max_size=60), st.integers(0, 20), st.integers(0, 99))
def test_a_string_of_length_k_is_replaced(text, length, seed):
    """EMNLP 2021, section 2.2; of a text that k characters would hide, half is."""
    masked = mask_span(text, length=length, mask_token="\0", rng=np.random.default_rng(seed))
    check_span(text, masked, length if length < len(text) else len(text) // 2)


@given(st.text(max_size=60), st.integers(0, 20), st.integers(0, 99))
def test_half_masks_at_most_half(text, length, seed):
    rng = np.random.default_rng(seed)
    masked = mask_span(text, length=length, mask_token="\0", rng=rng, method="half")
    check_span(text, masked, min(length, len(text) // 2))


WORDS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=9)


@given(WORDS, st.integers(0, 5), st.integers(0, 99))
def test_whole_words_are_masked_or_reordered(words, length, seed):
    """Footnote 13: of n words, k at random places get the mask token, or each other's place."""
    text, options = " ".join(words), {"length": length, "mask_token": "_"}
    rng = np.random.default_rng(seed)
    masked = mask_span(text, **options, rng=rng, method="words").split(" ")
    assert masked.count("_") == min(length, len(words) // 2)
    assert all(new in ("_", old) for old, new in zip(words, masked, strict=False))
    moved = mask_span(text, **options, rng=rng, method="reorder").split(" ")
    assert sorted(moved) == sorted(text.split(" "))
    assert sum(a != b for a, b in zip(words, moved, strict=False)) <= length


def check_span(text, masked, expected):
    if expected == 0:
        assert masked == text
        return
    assert len(masked) == len(text) - expected + 1
    starts = range(len(text) - expected + 1)
    assert masked in {text[:s] + "\0" + text[s + expected :] for s in starts}


def test_every_position_is_drawn(rng):
    seen = {mask_span("abcd", length=2, mask_token="_", rng=rng) for _ in range(200)}
    assert seen == {"_cd", "a_d", "ab_"}


def test_reference_skips_short_strings_and_writes_a_literal(rng):
    short = "x" * 29
    assert mask_span(short, length=5, mask_token="<mask>", rng=rng, method="reference") == short
    text = "abcdefghijklmnopqrstuvwxyz0123456789"
    masked = mask_span(text, length=5, mask_token="<mask>", rng=rng, method="reference")
    left, right = masked.split(" [MASK] ")
    assert text.startswith(left)
    assert text.endswith(right)
    assert len(left) + len(right) == len(text) - 5


@pytest.mark.parametrize("fixture", ["tiny_bert", "tiny_roberta"])
def test_the_mask_becomes_one_mask_token_of_each_tokenizer(fixture, request, rng):
    from mirror_train.model.pretrained import load_pretrained

    pretrained = load_pretrained(request.getfixturevalue(fixture))
    tokenizer = pretrained.text_tokenizer(64)
    mask_id = pretrained.hf_tokenizer.mask_token_id
    for text in ("river", "the old town", "on"):
        masked = mask_span(text, length=2, mask_token=pretrained.mask_token, rng=rng)
        assert tokenizer([masked]).tokens.ids.tolist().count(mask_id) == 1


def test_an_unknown_method_is_refused(rng):
    with pytest.raises(ConfigError, match=r"method.*one of mask-token, half, .*'spans'"):
        mask_span("a river", length=2, mask_token="_", rng=rng, method="spans")
