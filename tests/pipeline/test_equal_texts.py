"""Equal texts of a call run once, and everybody gets the vectors that he would have had anyway."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_rt import Encoder, NonFiniteError
from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.inference.pooled_model import PooledModel
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.vectors.normalization import normalize_rows
from step_encoder import CharacterTokenizer


class CountingModel(PooledModel):
    """Makes a vector of the characters of a row, and remembers the rows that it was given."""

    def __init__(self, dimension=8):
        super().__init__(dimension)
        self.rows = []

    def run_batch(self, batch, *, normalize):
        vectors = []
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
            ids = ids[mask == 1]
            self.rows.append("".join(map(chr, ids)))
            vector = np.sin(np.outer(ids, 1 + np.arange(self.dimension))).sum(0)
            vectors.append(vector * np.nan if "~" in self.rows[-1] else vector)
        found = np.array(vectors, np.float32)
        return normalize_rows(found) if normalize else found


@pytest.fixture
def encoder():
    return counting_encoder()


def counting_encoder(cache=None):
    pipeline = Pipeline(CharacterTokenizer(), CountingModel(), cache=cache)
    return BatchEncoder(pipeline, mask_token=None)


def rows_of(encoder):
    return encoder.pipeline.model.rows


def test_the_reports_of_tokens_are_those_of_every_text(encoder):
    encoded = encoder.encode_with_info(["aaa", "bb", "aaa"])
    assert encoded.token_counts.tolist() == [3, 2, 3]
    assert encoded.chunks.tolist() == [1, 1, 1]


def test_a_vector_of_an_equal_text_is_its_own(encoder):
    vectors = encoder.encode(["aaa", "aaa"])
    vectors[0] = 0
    assert vectors[1].any()


def test_prompts_make_other_rows(encoder):
    encoder.encode(["aaa"], prompt="b")
    encoder.encode(["baaa"])
    np.testing.assert_array_equal(
        encoder.encode(["aaa", "aaa"], prompt="b"), encoder.encode(["baaa", "baaa"])
    )
    assert rows_of(encoder) == ["baaa"] * 4


def test_token_ids_run_once(encoder):
    encoder.pipeline.tokenizer.vocabulary_size, plan = 128, encoder.pipeline.plan()
    rows = encoder.pipeline.tokenize([[97, 98], [97], [97, 98]], plan)
    encoded = encoder.pipeline._encode_rows(rows, plan)
    assert sorted(rows_of(encoder)) == ["a", "ab"]
    np.testing.assert_array_equal(encoded.embeddings[0], encoded.embeddings[2])


def test_all_equal_texts_without_a_finite_vector_are_named(encoder):
    with pytest.raises(NonFiniteError) as error:
        encoder.encode(["fine", "bad~", "fine", "bad~"])
    assert [row for row, _ in error.value.items] == [1, 3]
    vectors = encoder.encode(["fine", "bad~", "fine", "bad~"], errors="nan")
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    "texts", [["a"] * 5, ["a", "bb", "a", "ccc"], ["a", "bb"], ["a", None, "a"]]
)
def test_progress_counts_every_text(encoder, texts):
    from mirror_rt.tokens.windows import text_windows

    counts, plan = [], encoder.pipeline.plan(errors="nan")
    for _ in encoder.pipeline.encode_windows(text_windows(texts), plan, count=counts.append):
        pass
    assert sum(counts) == len(texts)


TEXTS = st.lists(st.text(alphabet="ab~ö", min_size=1, max_size=3), min_size=1, max_size=40)


@given(TEXTS, st.sampled_from([1, 32]), st.booleans(), st.sampled_from([None, 3]))
@settings(max_examples=60, deadline=None)
def test_results_are_those_of_each_text_alone(texts, batch_size, normalize, dimension):
    encoder = counting_encoder()
    options = {
        "batch_size": batch_size,
        "normalize_embeddings": normalize,
        "truncate_dim": dimension,
        "errors": "nan",
    }
    vectors = encoder.encode(texts, **options)
    assert sorted(rows_of(encoder)) == sorted(set(texts))
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_array_equal(vector, counting_encoder().encode([text], **options)[0])


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=3), max_size=30))
def test_keys_are_equal_for_equal_rows_alone(sequences):
    tokens = RaggedTokens.from_lists(sequences)
    keys = tokens.keys()
    assert keys == [tokens.key(row) for row in range(len(sequences))]
    assert len(set(keys)) == len(set(map(tuple, sequences)))


def test_a_bundle_gives_the_vectors_of_texts_alone(bundle, words):
    with Encoder.load(bundle, providers="native") as encoder:
        texts = [" ".join(words[i : i + 1 + i % 5]) for i in range(30)] * 3
        again = [encoder.encode(text) for text in texts]
        np.testing.assert_array_equal(encoder.encode(texts), again)
        long = " ".join(words) + " "
        chunked = encoder.encode_with_info([long * 2, long, long * 2], on_too_long="chunk")
        np.testing.assert_array_equal(chunked.embeddings[0], chunked.embeddings[2])
        assert chunked.chunks[0] == chunked.chunks[2] > chunked.chunks[1]
        first, other, last = encoder.encode_tokens([words[0], words[1], words[0]])
        np.testing.assert_array_equal(first, last)
        first[:] = 0
        assert last.any()
        assert not np.array_equal(other, last)
