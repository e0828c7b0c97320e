"""Add the vectors of a column of texts to Arrow tables, with which engines of tables work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError, DataError, require
from mirror_rt.io.arrow import holds_texts, vector_array
from mirror_rt.io.vectors import invalid_rows
from mirror_rt.pipeline.options import FLOATS, EncodeKeywords
from mirror_rt.pipeline.pipeline import OnRun
from mirror_rt.pipeline.results import EncodedTexts, RowCounts
from mirror_rt.tokens.windows import TextWindow, with_results


class TableEncoder:
    """Add a column of vectors to record batches of Arrow, one row for each row.

    Args:
        encoder: makes the vectors.
        text_column: column of the texts.
        vector_column: column of the vectors, a list of fixed size.
        columns: columns to keep; None for all.
        **options: fields of `EncodeOptions`. Without `errors`, a text that cannot be encoded (null,
            blank, not valid Unicode ...) has a null, whatever the precision.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        text_column: str = "text",
        vector_column: str = "embedding",
        columns: Sequence[str] | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> None:
        self.text_column = text_column
        self.vector_column = vector_column
        self.columns = None if columns is None else list(columns)
        self._pyarrow = require("pyarrow", extra="tables", purpose="encoding a table")
        self._pipeline = encoder.pipeline
        self._null_invalid, self._zeros = "errors" not in options, options.get("errors") == "zero"
        if self._null_invalid or self._zeros:  # codes have no NaN, and NaN is counted below
            of_floats = options.get("precision", "float32") in FLOATS
            options["errors"] = "nan" if of_floats else "zero"
        self._plan = self._pipeline.plan(**options)

    @property
    def vector_field(self) -> Any:
        """The `pyarrow.Field` of the vectors."""
        quantizer = self._plan.quantizer
        number = self._pyarrow.from_numpy_dtype(quantizer.dtype)
        kind = self._pyarrow.list_(number, quantizer.width(self._plan.dimension))
        return self._pyarrow.field(self.vector_column, kind)

    @property
    def empty_schema(self) -> Any:
        """The `pyarrow.Schema` of the result for an input without rows, whose types are unknown."""
        names = dict.fromkeys([self.text_column, *(self.columns or [])])
        return self.schema(self._pyarrow.schema({name: self._pyarrow.string() for name in names}))

    def schema(self, schema: Any) -> Any:
        """Return the `pyarrow.Schema` of the result for batches of a schema."""
        names = [self.text_column, *(self.columns or [])]
        if missing := [name for name in names if name not in schema.names]:
            raise DataError(
                f"there is no column {missing[0]!r}; the columns are {', '.join(schema.names)}"
            )
        if not holds_texts(kind := schema.field(self.text_column).type):
            raise DataError(f"the column {self.text_column!r} is of type {kind}, expected string")
        fields = [field for field in schema if self.columns is None or field.name in self.columns]
        if self.vector_column in [field.name for field in fields]:
            raise ConfigError(
                f"there is a column {self.vector_column!r} already: leave it out of the columns to "
                "keep, or give the vectors another name"
            )
        return self._pyarrow.schema([*fields, self.vector_field])

    def encode(
        self,
        stream: Iterable[Any],
        *,
        on_run: OnRun = None,
        on_rows: Callable[[RowCounts], object] = lambda counts: None,
    ) -> Iterator[Any]:
        """Yield each record batch with its vectors; the next one is tokenised while one runs.

        Args:
            stream: `pyarrow.RecordBatch`, of some thousand rows each for the best speed.
            on_run: called with every batch of token ids that has run.
            on_rows: called with the counts of each record batch.
        """

        def encode(drawn: Iterator[tuple[Any, TextWindow]]) -> Iterator[EncodedTexts]:
            windows = (window for _, window in drawn)
            return self._pipeline.encode_windows(windows, self._plan, on_run=on_run)

        for (batch, window), encoded in with_results(self._windows(stream), encode):
            on_rows(RowCounts.of(window, encoded))
            yield self._joined(batch, window, encoded.embeddings)

    def _windows(self, stream: Iterable[Any]) -> Iterator[tuple[Any, TextWindow]]:
        start = 0
        for batch in stream:
            self.schema(batch.schema)  # raises an error before the work, if a column is missing
            yield batch, TextWindow.check(start, _texts(batch.column(self.text_column)))
            start += batch.num_rows

    def _joined(self, batch: Any, window: TextWindow, vectors: Any) -> Any:
        mask = invalid_rows(vectors)
        if self._zeros:
            vectors[mask], mask = 0, np.zeros_like(mask)
        if self._null_invalid:
            mask[np.fromiter(window.invalid, dtype=np.intp)] = True
        schema = self.schema(batch.schema)
        kept = [batch.column(name) for name in schema.names[:-1]]
        return self._pyarrow.record_batch([*kept, vector_array(vectors, mask)], schema=schema)


def _texts(column: Any) -> list[Any]:
    """Return the values of a column; None where bytes are not UTF-8, which Arrow does not check."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_text(value) for value in column]


def _text(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return None
