"""Rows of pairs: those of the library `tokenizers`, cut as it cuts them, with their types."""

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from mirror_rt import BundleError, ConfigError
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.pairs import Pair, PairTokenizer, as_pair
from tiers import tiers
from tiny_models import SENTENCES, TINY, make_tokenizer

texts = st.builds(
    lambda words, times: " ".join(words) * times,
    st.lists(
        st.sampled_from(["the", "river", "é", "人", "🙂", "old", ",", "[SEP]", "xyz"]),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 9),
)
fuzz = settings(max_examples=int(os.environ.get("MIRROR_RT_FUZZ", "200")), deadline=None,
                suppress_health_check=list(HealthCheck))  # fmt: skip


@pytest.fixture(scope="module", params=tiers(["bert", "roberta", "xlm-roberta"], fast=["bert"]))
def library(request, words):
    """A tokenizer of the library."""
    return make_tokenizer(TINY[request.param], words + SENTENCES)


def make(library, max_length):
    return PairTokenizer(library, max_length=max_length, pad_id=0)


def types_and_ids(tokens):
    return tokens.ids < 0, np.where(tokens.ids < 0, ~tokens.ids, tokens.ids)


@fuzz
@given(
    pairs=st.lists(st.tuples(texts, texts), max_size=4),
    limit=st.integers(8, 40),
    side=st.sampled_from(["left", "right"]),
    prompt=st.sampled_from(["", "the town: "]),
)
def test_rows_are_those_of_the_library(library, pairs, limit, side, prompt):
    whole = Tokenizer.from_str(library.to_str())
    for truncation in ("longest_first", "only_second"):
        whole.enable_truncation(limit, strategy=truncation, direction=side)
        tokenizer = make(library, limit)
        found = tokenizer(
            [Pair(*pair, truncation, side == "left") for pair in pairs], prompt=prompt
        )
        prompted = [(prompt + query, document) for query, document in pairs]
        empty = {i for i, length in enumerate(found.tokens.lengths) if not length}
        for i in empty:
            assert truncation == "only_second"
            with pytest.raises(Exception, match="too short"):
                whole.encode(*prompted[i])
        kept = [i for i in range(len(pairs)) if i not in empty]
        expected = whole.encode_batch([prompted[i] for i in kept])
        types, ids = types_and_ids(found.tokens)
        assert ids.tolist() == [i for encoding in expected for i in encoding.ids]
        assert types.tolist() == [t for encoding in expected for t in encoding.type_ids]
        assert [found.truncated[i] for i in kept] == [bool(one.overflowing) for one in expected]


@pytest.mark.parametrize("truncation", ["longest_first", "only_second"])
def test_a_tokenizer_that_cuts_from_the_left_does_as_in_transformers(library, truncation):
    theirs = PreTrainedTokenizerFast(tokenizer_object=library, truncation_side="left")
    tokenizer = PairTokenizer(library, max_length=14, pad_id=0, left=True)
    words = [f"{word} the old river" for word in ("town", "people", "world")]
    pairs = [(words[0], " ".join(words * n)) for n in range(1, 5)]
    expected = theirs(*zip(*pairs, strict=True), truncation=truncation, max_length=14)["input_ids"]
    _, ids = types_and_ids(tokenizer([Pair(*pair, truncation) for pair in pairs]).tokens)
    assert ids.tolist() == [i for row in expected for i in row]
    alone = tokenizer([Pair(pairs[-1][1], None)]).tokens.ids
    assert alone.tolist() == theirs(pairs[-1][1], truncation=True, max_length=14)["input_ids"]


def test_padding_gives_types(library):
    tokenizer = make(library, 24)
    pairs = [as_pair(("the river", "old")), as_pair(["old", "the river the river"])]
    tokens = tokenizer(pairs).tokens
    batch = tokens.pad(None, pad_id=0)
    library.no_padding()
    library.enable_padding(pad_id=0)
    expected = library.encode_batch([pair[:2] for pair in pairs])
    library.no_padding()
    assert batch.input_ids.tolist() == [encoding.ids for encoding in expected]
    assert batch.token_type_ids.tolist() == [encoding.type_ids for encoding in expected]
    assert batch.attention_mask.tolist() == [encoding.attention_mask for encoding in expected]
    # The types travel with the rows.
    again = RaggedTokens.from_arrays([tokens.ids[a:b] for a, b in tokens.spans()][::-1])
    assert (again.pad(None, pad_id=0).token_type_ids == batch.token_type_ids[::-1]).all()
    assert (tokens.take(np.array([1])).pad(None, pad_id=0).input_ids[0] >= 0).all()


def test_long_texts_cost_no_more_than_the_limit(library):
    tokenizer = make(library, 16)
    tokens, truncated = tokenizer([Pair("the", "river " * 200_000), Pair("the " * 10**6, "old")])
    assert truncated == [True, True]
    assert tokens.lengths.tolist() == [16, 16]
    last = [tokenizer([Pair("the", "river " * n + "old", left=True)]) for n in (40, 200_000)]
    assert (last[0].tokens.ids == last[1].tokens.ids).all()
    assert last[1].truncated == [True]


def test_what_is_no_pair(library):
    tokenizer = make(library, 16)
    items = [None, "text", ("a",), ("a", "b", "c"), ["a", "b"], ("a", None), (" ", "b"),
             ("a", "\ud800"), ("a", "b")]  # fmt: skip
    reasons = tokenizer.find_invalid([as_pair(item) for item in items])
    assert [*reasons] == [0, 1, 2, 3, 5, 6, 7]
    assert reasons[1] == "expected a pair of texts, got 'text'"
    assert reasons[5] == "the document: expected str, got NoneType"
    assert reasons[6] == "the query: the string is only white space"


def test_a_query_that_leaves_no_room(library):
    tokenizer = make(library, 12)
    long = "the river " * 9
    unseen = "\x08"  # gives no tokens
    items = [Pair("the", "old", "only_second"), Pair(long, "old", "only_second"), Pair(long, "old"),
             Pair(long, unseen), Pair(long, unseen, "only_second")]  # fmt: skip
    assert tokenizer.find_invalid(items) == {}
    lengths = tokenizer(items).tokens.lengths
    assert (lengths == 0).tolist() == [False, True, False, False, True]
    assert "leaves no room for a document" in tokenizer.why_empty


def test_limits_and_damaged_processors(library, tmp_path):
    special = library.num_special_tokens_to_add(is_pair=True)
    with pytest.raises(ConfigError, match=f"give at least {special + 2}"):
        make(library, special + 1)
    assert make(library, special + 2)([Pair("the old", "river")]).tokens.lengths[0] <= special + 2
    path = tmp_path / "tokenizer.json"
    values = json.loads(library.to_str())
    one, two = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    for pair, said in [
        ([two, one], "one behind the other"),
        ([one, two, one], "one behind the other"),
        ([one | {}, {"Sequence": {"id": "B", "type_id": 2}}], "other token types"),
        ([{"Sequence": {"id": "A", "type_id": 1}}, two], "other token types"),
    ]:
        values["post_processor"] = {
            "type": "TemplateProcessing", "single": [one], "pair": pair, "special_tokens": {},
        }  # fmt: skip
        path.write_text(json.dumps(values))
        with pytest.raises(BundleError, match=said):
            PairTokenizer.from_file(path, max_length=16, pad_id=0)
