"""LanceDB: a table on disk that finds its model again."""

import time

import numpy as np
import pytest

pytest.importorskip("lancedb")

import lancedb
import pyarrow as pa
from lancedb.embeddings import get_registry
from lancedb.pydantic import LanceModel, Vector

import mirror_rt.adapters.lancedb  # noqa: F401  # registers the function
from mirror_rt.vectors.maxsim import maxsim
from rounding import ANY_BATCH, SCORE_ERROR


@pytest.fixture
def table(tmp_path, model):
    def create(rows, **options):
        function = get_registry().get("mirror-rt").create(model=str(model), **options)

        class Row(LanceModel):
            text: str | None = function.SourceField()
            vector: Vector(function.ndims()) | None = function.VectorField(default=None)

        database = lancedb.connect(tmp_path / "lance")
        return database.create_table("texts", schema=Row, mode="overwrite"), rows

    return create


def test_a_table_is_searched_and_opened_again(
    table, tmp_path, documents, query, ranked, document_vectors
):
    made, rows = table([{"text": text} for text in documents])
    made.add(rows)
    opened = lancedb.connect(tmp_path / "lance").open_table("texts")
    for one in (made, opened):
        found = one.search(query).distance_type("dot").limit(3).to_list()
        assert [row["text"] for row in found] == ranked[:3]
    vectors = opened.to_arrow()["vector"].to_pylist()
    np.testing.assert_allclose(vectors, document_vectors, atol=ANY_BATCH)


def test_options_are_stored(table, tmp_path, documents):
    made, rows = table(
        [{"text": text} for text in documents],
        model_kwargs={"threads": 1},
        encode_kwargs={"truncate_dim": 8},
    )
    made.add(rows)
    assert made.schema.field("vector").type.list_size == 8
    opened = lancedb.connect(tmp_path / "lance").open_table("texts")
    opened.add([{"text": "one more"}])
    assert len(opened.search("one more").limit(9).to_list()) == len(documents) + 1


def test_a_row_without_text_is_an_error_at_once_or_a_bad_vector(table, monkeypatch):
    """LanceDB would try again for minutes, with pauses from a second on."""
    sleep, long = time.sleep, []
    monkeypatch.setattr(time, "sleep", lambda s: long.append(s) if s >= 1 else sleep(s))
    made, _ = table([])
    with pytest.raises(RuntimeError, match="cannot encode item 1: expected str, got NoneType"):
        made.add([{"text": "a"}, {"text": None}])
    assert long == []
    made, _ = table([], encode_kwargs={"errors": "nan"})
    made.add([{"text": "a"}, {"text": ""}], on_bad_vectors="drop")
    assert made.count_rows() == 1


def test_vectors_of_tokens(tmp_path, token_vectors):
    """As guides/late-interaction.md says that they are stored."""
    query, stored = token_vectors[0], token_vectors[1:]
    kind = pa.list_(pa.list_(pa.float32(), query.shape[1]))
    rows = {
        "id": pa.array(range(len(stored))),
        "vector": pa.array([vectors.tolist() for vectors in stored], type=kind),
    }
    table = lancedb.connect(tmp_path / "late").create_table("texts", pa.table(rows))
    found = table.search(query).distance_type("cosine").to_list()
    expected = maxsim([query], stored)[0]
    assert [row["id"] for row in found] == list(np.argsort(-expected))
    for row in found:
        assert len(query) - row["_distance"] == pytest.approx(expected[row["id"]], abs=SCORE_ERROR)
