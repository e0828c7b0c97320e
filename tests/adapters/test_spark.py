"""Spark: frames in workers that keep their encoder."""

import os
import sys

import numpy as np
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, ByteType, FloatType

from mirror_rt.adapters.spark import MirrorEmbedder
from mirror_rt.errors import ConfigError
from rounding import ANY_BATCH


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    """On two CPUs; its workers import from the driver's folder, which must not be the sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.chdir(tmp_path_factory.mktemp("empty"))
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture
def frame(spark, documents):
    rows = [(i, text) for i, text in enumerate([*documents, None, " "] * 20)]
    return spark.createDataFrame(rows, "id long, text string").repartition(4)


def rows_of(frame):
    return sorted(frame.collect(), key=lambda row: row.id)


def test_frames(model, frame, documents, encoder):
    embedder = MirrorEmbedder(str(model))
    made = embedder.transform(frame)
    assert made.columns == ["id", "text", "embedding"]
    assert made.schema["embedding"].dataType == ArrayType(FloatType())
    rows = rows_of(made)
    assert [row.text for row in rows] == [*documents, None, " "] * 20
    assert [row.embedding is None for row in rows] == ([False] * 6 + [True] * 2) * 20
    vectors = np.array([row.embedding for row in rows if row.embedding])
    np.testing.assert_allclose(vectors, np.tile(encoder.encode(documents), (20, 1)), atol=ANY_BATCH)


def test_codes_and_columns(model, frame, documents, encoder):
    embedder = MirrorEmbedder(str(model), columns=["id"], encode_kwargs={"precision": "int8"})
    made = embedder.transform(frame)
    assert made.columns == ["id", "embedding"]
    assert made.schema["embedding"].dataType == ArrayType(ByteType())
    rows = rows_of(made)[:8]
    expected = encoder.encode(documents, precision="int8")
    np.testing.assert_allclose([row.embedding for row in rows[:6]], expected, atol=1)
    assert rows[6].embedding is rows[7].embedding is None


def test_a_worker_keeps_its_encoder(model, frame):
    """The time of the change of the manifest would show a second load of other options."""
    from mirror_rt.adapters import spark

    def loads(batches):
        import pyarrow as pa

        for _ in MirrorEmbedder(str(model))(batches):
            pass
        found = spark._held.cache_info()
        yield pa.record_batch({"pid": [os.getpid()], "misses": [found.misses]})

    # The second job finds the encoders of the first one.
    for _ in range(2):
        rows = frame.mapInArrow(loads, "pid long, misses long").collect()
    assert {row.misses for row in rows} == {1}


def test_unknown_options_are_refused_at_once(model):
    with pytest.raises(ConfigError, match="takes no argument 'thread'"):
        MirrorEmbedder(str(model), model_kwargs={"thread": 1})


def test_the_pipeline_of_the_guide(shown, spark, model, frame, tmp_path):
    frame.write.parquet(f"{tmp_path}/texts")
    there = {"all-MiniLM-L6-v2": model, "s3://texts/2026": f"{tmp_path}/texts",
             "s3://vectors/2026": f"{tmp_path}/vectors"}  # fmt: skip
    exec(shown("adapters.spark", there), {"spark": spark})
    rows = rows_of(spark.read.parquet(f"{tmp_path}/vectors"))
    assert [row.embedding is None for row in rows] == ([False] * 6 + [True] * 2) * 20
