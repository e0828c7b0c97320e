"""Adapt encoders to Spark: `MirrorEmbedder` for `mapInArrow`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mirror_rt.adapters.lazy import LazyEncoder, TableAdapter
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import importing
from mirror_rt.inference.providers import without_cards

with importing("pyspark", extra="spark", purpose="mirror_rt.adapters.spark"):
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame
    from pyspark.sql.types import (
        ArrayType,
        ByteType,
        FloatType,
        ShortType,
        StructField,
        StructType,
    )

# Spark has neither unsigned numbers nor float16, nor lists of fixed size.
_SHORT = {"uint8": (pa.int16(), ShortType()), "ubinary": (pa.int16(), ShortType()),
          "int8": (pa.int8(), ByteType()), "binary": (pa.int8(), ByteType())}  # fmt: skip


class MirrorEmbedder(TableAdapter):
    """Add a column of vectors to a frame of Spark.

        frame = MirrorEmbedder("all-MiniLM-L6-v2").transform(frame)
        frame = frame.mapInArrow(embedder, embedder.schema(frame.schema))  # the same

    A worker loads the encoder once, by its name, and keeps it for its next tasks. The CPUs of a
    task (`spark.task.cpus`) are its threads, and the GPUs of a task are its cards. A text that
    cannot be encoded has a null. `spark.sql.execution.arrow.maxRecordsPerBatch` is the number of
    texts that are sorted by length together; some thousand are best.

    The arguments are those of `TableAdapter`. A vector is an array of float, byte (`int8`,
    `binary`) or short (`uint8`, `ubinary`), by the precision.
    """

    def transform(self, frame: DataFrame) -> DataFrame:
        """Return the frame with its vectors, which Spark computes when they are needed."""
        return frame.mapInArrow(self, self.schema(frame.schema))

    def schema(self, schema: StructType) -> StructType:
        """Return the schema of the result for frames of a schema."""
        kept = schema.names if self.columns is None else self.columns
        fields = [field for field in schema.fields if field.name in kept]
        number = _numbers(self._lazy.encode_kwargs)[1]
        return StructType([*fields, StructField(self.vector_column, ArrayType(number))])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a task with their vectors."""
        table = self._table(_encoder_of_worker(self._lazy))
        vectors = pa.list_(_numbers(self._lazy.encode_kwargs)[0])
        for batch in table.encode(batches):
            last = batch.num_columns - 1
            name, lists = batch.schema.names[last], batch.column(last).cast(vectors)
            yield batch.set_column(last, name, lists)


def _numbers(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the types of Arrow and Spark of a vector's numbers."""
    return _SHORT.get(options.get("precision", "float32"), (pa.float32(), FloatType()))


def _encoder_of_worker(lazy: LazyEncoder) -> Encoder:
    """Return the encoder that this worker holds; Spark unpickles its function for every task."""
    options: dict[str, Any] = {}
    if (task := TaskContext.get()) is not None:
        options["threads"] = max(1, task.cpus())
        if cards := task.resources().get("gpu"):
            options["devices"] = [int(i) for i in cards.addresses]
        else:
            options["providers"] = without_cards()
    return _held(str(lazy.model), json.dumps(options | lazy.model_kwargs, sort_keys=True))


@functools.lru_cache(maxsize=1)
def _held(model: str, options: str) -> Encoder:
    return Encoder.load(model, **json.loads(options))
