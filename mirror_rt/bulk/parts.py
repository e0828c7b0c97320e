"""Write the vectors of blocks as Parquet files, and prove that they are whole and all there.

The file of a block, its part, describes itself, and appears whole or not at all. Its name follows
from the block alone and its content from the block and the job, so a part that is written twice, by
a task that was started anew, is the same file, and no row is ever doubled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from typing import Any, cast

from mirror_rt.bulk.options import DatasetConfig, texts_named_in
from mirror_rt.bulk.plan import dataset_plan, refuse_other_plan
from mirror_rt.bulk.reading import Block, read_block
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.encoding.tables import TableEncoder
from mirror_rt.errors import DataError, OutputExistsError, require
from mirror_rt.io.arrow import open_parquet
from mirror_rt.io.atomic import files_under
from mirror_rt.io.file_states import load_unchanged
from mirror_rt.io.storage import Folder, StoredFile
from mirror_rt.kept_work import Identity
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import OnRun
from mirror_rt.pipeline.results import COUNTED, RowCounts

_KEY = b"mirror_rt"  # of the footer, which keeps a JSON object there
_JOB, MANIFEST = "_job.json", "_manifest.json"
_PART = re.compile(r".*-\d{5,}\.parquet")
_FILES_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Encode blocks of one job."""

    output: Folder  # folder of the parts
    encoder: TableEncoder  # makes the vectors, and chooses the columns
    job: str  # digest of the job's plan
    rows: int  # most rows that are encoded together

    @classmethod
    def open(cls, config: DatasetConfig, job: str) -> PartWriter:
        """Load the encoder of a job; DataError if it would make other vectors here."""
        folder = config.load.find(config.model)

        def load() -> Encoder:
            if (plan := dataset_plan(config)).digest != job:
                raise DataError(
                    f"this process would make other vectors than the job's: {plan.values}"
                )
            return Encoder._load_whole(folder, config.load)

        encoder = load_unchanged(folder, load, Encoder.close)
        how = cast(EncodeKeywords, asdict(config.options))
        table = TableEncoder(encoder, text_column=config.text_field, columns=config.columns, **how)
        return cls(Folder.at(config.output), table, job, config.window)

    def write(self, block: Block, on_run: OnRun = None) -> dict[str, Any]:
        """Encode a block and write its part; return the part's record."""
        batches = read_block(block, self.encoder.text_column, self.encoder.columns, self.rows)
        with (
            texts_named_in(f"{block.file}, row group {block.group}"),
            self.output.new_file(block.part) as file,
        ):
            record = self._write(file, batches, on_run, {**block.source, "job": self.job})
            now = block.file.folder.file(block.file.name)
            if now != block.file or block.rows not in (None, record["rows"]):
                raise DataError(
                    f"{block.file} was changed while it was read: encode it again, with --resume"
                )
        return record

    def _write(
        self, file: Any, batches: Iterable[Any], on_run: OnRun, record: dict[str, Any]
    ) -> dict[str, Any]:
        """Encode and write record batches as row groups; return the record with their counts."""
        parquet = require("pyarrow.parquet", extra="tables", purpose="Parquet")
        counted: list[RowCounts] = []
        stream = iter(self.encoder.encode(batches, on_run=on_run, on_rows=counted.append))
        first = next(stream, None)
        schema = self.encoder.empty_schema if first is None else first.schema
        # Numbers of vectors hardly ever repeat, so a dictionary would not help.
        how = {"use_dictionary": False, "compression": "zstd", "write_page_checksum": True}
        with parquet.ParquetWriter(file, schema, **how) as writer:
            for batch in chain([] if first is None else [first], stream):
                writer.write_batch(batch)
            record |= sum(counted, RowCounts()).to_dict()
            writer.add_key_value_metadata({_KEY: json.dumps(record)})
        return record


def find_part(output: Folder, block: Block, job: str) -> dict[str, Any] | None:
    """Return the record in a block's part; None if it must be encoded (again).

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


def _check_pages(file: StoredFile) -> None:
    """Read a part and compare its pages with their checksums; DataError if one has changed."""
    pyarrow = require("pyarrow", extra="tables", purpose="Parquet")
    with open_parquet(file, page_checksum_verification=True) as part:
        try:
            for _ in part.iter_batches():
                pass
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{file} is damaged: {error}") from error


def open_output(output: Folder, plan: Identity, *, resume: bool, overwrite: bool) -> None:
    """Record the plan of a job in the folder of its parts, or compare it with the recorded one.

    Shards of one job have equal plans. With `resume`, parts of the job are kept; otherwise
    `overwrite` removes the files of an earlier job.
    """
    files = output.files()
    if files and _JOB not in files:
        raise OutputExistsError(
            f"{output} holds {next(iter(files))} and is not the folder of a job: choose another"
        )
    if _JOB in files and (resume or not overwrite):
        refuse_other_plan(output, read_plan(output), plan)
        return
    for name in files:
        if name == MANIFEST or _PART.fullmatch(name):
            output.delete(name)
    _write(output, _JOB, plan.values)


def read_plan(output: Folder) -> Identity:
    """Return the plan of the job in a folder; DataError if there is none, or it is damaged."""
    file = output.file(_JOB)
    if file is None:
        raise DataError(f"{output} is not the folder of a job: it has no {_JOB}")
    with file.open() as stream:
        return Identity.read(stream.read(), file)


def whole_parts(output: Folder, blocks: Sequence[Block], job: str) -> dict[str, dict[str, Any]]:
    """Return the records of the parts of a job, by name, for the blocks that have one.

    A part that is damaged, of another job, or of a source that has changed since, counts as none.
    """
    there = output.files()
    some = [block for block in blocks if block.part in there]
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        records = list(pool.map(partial(find_part, output, job=job), some))
    pairs = zip(some, records, strict=True)
    return {block.part: record for block, record in pairs if record is not None}


def refuse_parts(output: Folder, blocks: Sequence[Block], whole: Iterable[str]) -> None:
    """Raise OutputExistsError if a block has a part already.

    `whole` names those that are of this job and of the input as it is now.
    """
    there = output.files()
    names = [block.part for block in blocks if block.part in there]
    if others := sorted({*names} - {*whole}):
        raise OutputExistsError(
            f"{output} holds {len(others)} parts that are damaged or not of the input as it is "
            f"now: {_some(others)}; name another folder, encode them again with --resume, or start "
            "anew with --overwrite"
        )
    if names:
        raise OutputExistsError(
            f"{output} holds {len(names)} of the {len(blocks)} parts: go on with --resume"
        )


def write_manifest(output: Folder, blocks: Sequence[Block], *, pages: bool) -> dict[str, Any]:
    """Check that every block has a whole part of the job, and write the manifest; return it.

    With `pages`, all parts are read, and their pages are compared with the checksums, too.
    """
    plan = read_plan(output)
    parts = whole_parts(output, blocks, plan.digest)
    missing = [block.part for block in blocks if block.part not in parts]
    if missing:
        raise DataError(
            f"{output} lacks {len(missing)} of {len(blocks)} parts, or they are damaged or of "
            f"another job or input: {_some(missing)}; run their shards again, with --resume"
        )
    files = output.files()
    if others := [name for name in files if _PART.fullmatch(name) and name not in parts]:
        raise DataError(
            f"{output} has {len(others)} parts of no block of the input: {_some(others)}; remove "
            "them, or encode into an empty folder"
        )
    if pages:
        with ThreadPoolExecutor() as pool:
            list(pool.map(_check_pages, [files[name] for name in parts]))
    if output.local is not None:  # unfinished files of killed processes
        for path in files_under(output.local):
            here = path.parent == output.local  # where alone the job and the manifest are
            if fnmatch(path.name, ".*.parquet.*") or (here and fnmatch(path.name, "._*.json.*")):
                path.unlink(missing_ok=True)
    manifest = {
        "format": "mirror_rt dataset 1",
        "job": plan.values,
        "blocks": len(parts),
        **total_of(parts).to_dict(),
        "parts": {name: record | {"bytes": files[name].bytes} for name, record in parts.items()},
    }
    _write(output, MANIFEST, manifest)
    return manifest


def total_of(parts: Mapping[str, dict[str, Any]]) -> RowCounts:
    """Return the sums of the counts that parts record, with places such as PART:ROW."""
    total = RowCounts()
    for name, record in parts.items():
        counts = {count: record.get(count, 0) for count in COUNTED}  # early parts have two alone
        first = {
            kind: [f"{name}:{n}" for n in rows] for kind, rows in record.get("first", {}).items()
        }
        total += RowCounts(**counts, first=first)
    return total


def _write(output: Folder, name: str, value: Any) -> None:
    with output.new_file(name) as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
