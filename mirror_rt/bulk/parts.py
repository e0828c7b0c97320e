"""Write the vectors of a block as a Parquet file that says what it holds, and check such files.

A part appears whole or not at all. Its name follows from the block alone and its content from the
block and the job, so a part that is written twice, by a task that was started anew, is the same
file, and no row is ever doubled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, cast

from mirror_rt.bulk.blocks import Block, read_block
from mirror_rt.bulk.options import DatasetConfig, texts_named_in
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.encoding.tables import TableEncoder
from mirror_rt.errors import DataError, require
from mirror_rt.io.arrow import open_parquet
from mirror_rt.io.storage import Folder, StoredFile
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.tokens.padding import PaddedBatch

_KEY = b"mirror_rt"  # of the footer, which keeps a JSON object there


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Encode blocks of one job.

    Attributes:
        output: folder of the parts.
        encoder: makes the vectors, and chooses the columns.
        job: digest of the job (`digest_of_plan`).
        rows: most rows that are encoded together.
    """

    output: Folder
    encoder: TableEncoder
    job: str
    rows: int

    @classmethod
    def open(cls, config: DatasetConfig, job: str) -> PartWriter:
        """Load the encoder of a job."""
        encoder = Encoder.load(config.model, **config.load.keywords())
        how = cast(EncodeKeywords, asdict(config.options))
        table = TableEncoder(encoder, text_column=config.text_field, columns=config.columns, **how)
        return cls(Folder.at(config.output), table, job, config.window)

    def write(
        self, block: Block, on_run: Callable[[PaddedBatch], object] | None = None
    ) -> dict[str, Any]:
        """Encode a block and write its part; return what the part records of itself."""
        batches = read_block(block, self.encoder.text_column, self.encoder.columns, self.rows)
        with (
            texts_named_in(f"{block.file}, row group {block.group}"),
            self.output.new_file(block.part) as file,
        ):
            encoded = self.encoder.encode(batches, on_run=on_run)
            record = self._write(file, encoded, {**block.source, "job": self.job})
            _check_unchanged(block, record["rows"])
        return record

    def _write(self, file: Any, batches: Iterable[Any], record: dict[str, Any]) -> dict[str, Any]:
        """Write record batches as row groups; return the record with the numbers of rows."""
        parquet = require("pyarrow.parquet", extra="tables", purpose="Parquet")
        stream, rows, invalid = iter(batches), 0, 0
        first = next(stream, None)
        schema = self.encoder.empty_schema if first is None else first.schema
        # Numbers of vectors hardly ever repeat, so a dictionary would not help.
        how = {"use_dictionary": False, "compression": "zstd", "write_page_checksum": True}
        with parquet.ParquetWriter(file, schema, **how) as writer:
            for batch in chain([] if first is None else [first], stream):
                writer.write_batch(batch)
                rows += batch.num_rows
                invalid += batch.column(batch.num_columns - 1).null_count
            record |= {"rows": rows, "invalid": invalid}
            writer.add_key_value_metadata({_KEY: json.dumps(record)})
        return record


def digest_of_plan(plan: dict[str, Any]) -> str:
    """Return the SHA-256 of a plan of JSON values."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def find_part(output: Folder, block: Block, job: str) -> dict[str, Any] | None:
    """Return what a block's part records of itself; None if it must be encoded (again).

    It must if the part is missing or cut off, or of another job, or if its source was changed. The
    footer is at the end of a file and counts its rows, so a file that was cut off has none.
    """
    file = output.file(block.part)
    if file is None:
        return None
    try:
        metadata = open_parquet(file).metadata
        record: dict[str, Any] = json.loads((metadata.metadata or {})[_KEY])
    except (DataError, KeyError, ValueError):
        return None
    expected = {**block.source, "job": job, "rows": metadata.num_rows}
    return record if expected.items() <= record.items() else None


def check_pages(file: StoredFile) -> None:
    """Read a part and compare its pages with their checksums; DataError if one has changed."""
    pyarrow = require("pyarrow", extra="tables", purpose="Parquet")
    with open_parquet(file, page_checksum_verification=True) as part:
        try:
            for _ in part.iter_batches():
                pass
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{file} is damaged: {error}") from error


def _check_unchanged(block: Block, rows: int) -> None:
    file = block.file
    if file.folder.file(file.name) != file or block.rows not in (None, rows):
        raise DataError(f"{file} was changed while it was read: encode it again, with --resume")
