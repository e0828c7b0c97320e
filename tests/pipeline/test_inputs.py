"""A table or a mapping is refused by name wherever texts are expected, and the column is named."""

import asyncio
import collections

import numpy as np
import pyarrow as pa
import pytest

from mirror_rt import Client, ConfigError, Encoder, InvalidTextError, LanguagePack, Scheduler
from mirror_rt.adapters.lazy import LazyEncoder
from mirror_rt.compat.sentence_transformer import SentenceTransformer
from mirror_rt.compat.text_embedding import TextEmbedding
from mirror_rt.pipeline.inputs import as_list
from server_process import make_pack

ROWS = {"id": ["a", "b", "c"], "text": ["one", "two", "three"]}


class DataFrame:
    """A table as those of pandas and polars are: iterating it gives the names of its columns."""

    def __init__(self, columns):
        self._columns = columns
        self.columns = list(columns)
        self.shape = (3, len(columns))

    def __iter__(self):
        return iter(self._columns)

    def __getitem__(self, name):
        return self._columns[name]


class Dataset(list):
    """A dataset as those of Hugging Face are: iterating it gives rows."""

    column_names = tuple(ROWS)


TABLES = {
    "dict": ROWS,
    "mapping": collections.ChainMap(ROWS),
    "frame": DataFrame(ROWS),
    "dataset": Dataset(
        dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)
    ),
    "pyarrow": pa.table(ROWS),
    "record batch": pa.record_batch(ROWS),
    "structured": np.array([("a", "one"), ("b", "two")], dtype=[("id", "U9"), ("text", "U9")]),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_refused_with_the_column_to_pass(name):
    with pytest.raises(InvalidTextError, match=r"such as inputs\['text'\]") as refused:
        as_list(TABLES[name])
    assert type(TABLES[name]).__name__ in str(refused.value)
    assert "'id'" in str(refused.value)


def test_the_column_to_pass_is_one_that_can_be_passed(encoder):
    assert "inputs['text'].to_pylist()" in _why(TABLES["pyarrow"])
    expected = encoder.encode(ROWS["text"])
    np.testing.assert_array_equal(encoder.encode(pa.table(ROWS)["text"].to_pylist()), expected)
    np.testing.assert_array_equal(encoder.encode(DataFrame(ROWS)["text"]), expected)
    np.testing.assert_array_equal(encoder.encode(np.array(ROWS["text"])), expected)


def test_arrays_of_several_columns_and_tables_without_any_are_refused():
    assert "ndarray of shape [2, 2]" in _why(np.array([["one", "two"], ["three", "four"]]))
    assert "ndarray of shape []" in _why(np.array(3))
    assert "DataFrame without columns" in _why(DataFrame({}))
    assert "of the columns 'q': pass one of them, such as inputs['q']" in _why({"q": ["one"]})
    assert "3, 4, ...: pass" in _why(dict.fromkeys(range(9)))


def _why(inputs):
    with pytest.raises(InvalidTextError) as refused:
        as_list(inputs)
    return str(refused.value)


@pytest.fixture
def encoder(bundle):
    with Encoder.load(bundle, threads=1) as encoder:
        yield encoder


@pytest.fixture
def ways(encoder, bundle, tmp_path):
    """Every function that takes texts."""
    pack = LanguagePack.load(make_pack(tmp_path / "pack", {"en": bundle}, "en"))
    compared, embedding = SentenceTransformer(str(bundle)), TextEmbedding(str(bundle))
    client, lazy = Client("http://127.0.0.1:9"), LazyEncoder(str(bundle))
    with Scheduler(encoder) as scheduler, pack:
        yield [
            *(getattr(e, f"{kind}encode{what}") for e in (encoder, pack) for kind in ("", "a")
              for what in ("", "_query", "_document")),
            encoder.encode_with_info, encoder.encode_tokens, encoder.tokenize, encoder.token_pieces,
            lambda table: next(encoder.encode_iter(table)),
            pack.encode_with_info, pack.tokenize, lambda table: next(pack.encode_iter(table)),
            scheduler.encode, scheduler.aencode, scheduler.submit,
            compared.encode, compared.encode_query,
            lambda table: next(iter(embedding.embed(table))),
            lambda table: next(iter(embedding.query_embed(table))), embedding.token_count,
            lazy.documents, lazy.queries,
            client.encode, client.encode_query,
        ]  # fmt: skip


def test_every_way_refuses_a_table(ways):
    for way in ways:
        for table in (TABLES["frame"], ROWS):
            with pytest.raises((InvalidTextError, ConfigError), match=r"inputs\['text'\]"):
                result = way(table)
                if asyncio.iscoroutine(result):
                    asyncio.run(result)
