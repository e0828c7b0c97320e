import numpy as np
import pytest
from tokenizers import Tokenizer

from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_rt.tokens.validity import why_invalid


@pytest.fixture
def tokenizer(bundle):
    return TextTokenizer.from_file(bundle / "tokenizer.json", max_length=20, pad_id=0)


def test_limits_hidden_in_the_file_are_dropped(tiny_bert):
    # The tiny model's file says: cut at 16, pad to 16.
    tokenizer = TextTokenizer.from_file(tiny_bert / "tokenizer.json", max_length=64, pad_id=0)
    lengths = tokenizer(["a", "a b c " * 8]).tokens.lengths
    assert lengths.tolist() == [3, 26]


def test_truncation_is_flagged_and_keeps_the_special_tokens(tokenizer):
    tokenized = tokenizer(["short", "word " * 18, "word " * 19])
    assert tokenized.truncated == [False, False, True]
    assert tokenized.tokens.lengths.tolist()[1:] == [20, 20]
    assert tokenized.tokens.ids[-1] == 3  # [SEP]


@pytest.mark.parametrize("text", ["the river runs ", "人生 ", "x-", "é", "a" + 900 * " "])
def test_a_long_text_gives_the_tokens_of_the_whole(tokenizer, text):
    text *= 20_000 // len(text)
    whole = tokenizer._tokenizer.encode(text)
    tokenized = tokenizer([text])
    assert tokenized.truncated[0] == bool(whole.overflowing)
    assert tokenized.tokens.ids.tolist() == whole.ids


def test_the_text_after_a_run_of_white_space_is_not_lost(tokenizer):
    tokenized = tokenizer([" " * 5000 + "the end", "the" + " " * 5000 + "end"])
    assert tokenized.truncated == [False, False]
    assert tokenized.tokens.lengths.tolist() == tokenizer(["the end"] * 2).tokens.lengths.tolist()


def test_ten_megabytes_are_cut_and_reported(tokenizer):
    """However long a string is, no more of it is tokenised than the limit needs."""
    seen = []

    class Recorder:
        def encode_batch_fast(self, texts, **options):
            seen.extend(map(len, texts))
            return real.encode_batch_fast(texts, **options)

    real, tokenizer._tokenizer = tokenizer._tokenizer, Recorder()
    for text in ("x" * 10_000_000, "人" * 3_000_000):
        tokenized = tokenizer([text])
        assert tokenized.truncated[0]
        assert tokenized.tokens.lengths[0] <= 20
    assert sum(seen) <= 2 * (64 + 1024) * 20
    # Blanks give no tokens: all of them are looked through, in parts.
    tokenized = tokenizer([" " * 9_999_990 + "the end"])
    assert not tokenized.truncated[0]
    assert tokenized.tokens.lengths[0] == 4
    assert max(seen) <= 1024 * 20


def test_content_and_frame_of_a_text_in_parts(tokenizer):
    text = "the river runs through the old town " * 40
    whole = tokenizer._tokenizer.encode(text)
    ids = [whole.ids, *(part.ids for part in whole.overflowing)]
    before, content, after = tokenizer.framed([text[:504], text[504:]])
    assert (before.tolist(), after.tolist()) == ([2], [3])
    assert content.tolist() == [i for part in ids for i in part[1:-1]]
    assert [len(part) for part in tokenizer.framed(["", "\x01"])] == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "expected str, got NoneType"),
        (b"bytes", "expected str, got bytes"),
        (3.5, "expected str, got float"),
        ("", "the string is empty"),
        (" \n\t", "only white space"),
        ("ab\ud800c", r"lone surrogate U\+D800 at character 2"),
    ],
)
def test_invalid_texts_are_explained(text, reason):
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(why_invalid(text))


@pytest.mark.parametrize("text", ["a", "é", "👩‍👩‍👧", "nul \0 inside", np.str_("numpy")])
def test_valid_texts(text):
    assert why_invalid(text) is None


def test_no_room_for_text(bundle):
    path = bundle / "tokenizer.json"
    with pytest.raises(BundleError, match="max_length 2 leaves no room"):
        TextTokenizer.from_file(path, max_length=2, pad_id=0)
    with pytest.raises(ConfigError, match="max_length 2 leaves no room"):
        TextTokenizer(Tokenizer.from_file(str(path)), max_length=2, pad_id=0)


def test_not_a_tokenizer_file(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match="is not a tokenizer file"):
        TextTokenizer.from_file(tmp_path / "tokenizer.json", max_length=9, pad_id=0)
