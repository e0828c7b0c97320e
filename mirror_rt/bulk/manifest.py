"""Keep the plan of a dataset's job beside its parts, and prove that the parts are all there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from mirror_rt.bulk.blocks import Block
from mirror_rt.bulk.parts import check_pages, digest_of_plan, find_part
from mirror_rt.bulk.plan import refuse_other_plan
from mirror_rt.errors import DataError, OutputExistsError
from mirror_rt.io.storage import Folder

_JOB, _MANIFEST = "_job.json", "_manifest.json"
_PART = re.compile(r".*-\d{5,}\.parquet")
_FILES_AT_A_TIME = 16


def open_output(output: Folder, plan: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Record the plan of a job in the folder of its parts, or compare it with the recorded one.

    Args:
        output: folder of the parts.
        plan: what determines a part; shards of one job have equal ones.
        resume: whether parts of the job are kept.
        overwrite: remove what an earlier job has written, unless it is resumed.
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
        if name == _MANIFEST or _PART.fullmatch(name):
            output.delete(name)
    _write(output, _JOB, plan)


def read_plan(output: Folder) -> dict[str, Any]:
    """Return the plan of the job in a folder; DataError if there is none, or it is damaged."""
    file = output.file(_JOB)
    if file is None:
        raise DataError(f"{output} is not the folder of a job: it has no {_JOB}")
    try:
        with file.open() as stream:
            plan: dict[str, Any] = json.loads(stream.read())
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}") from error
    return plan


def whole_parts(output: Folder, blocks: Sequence[Block], job: str) -> dict[str, dict[str, Any]]:
    """Return what the parts of a job record of themselves, by name, for the blocks that have one.

    A part that is damaged, of another job, or of a source that has changed since, counts as none.
    """
    there = output.files()
    some = [block for block in blocks if block.part in there]
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        records = list(pool.map(partial(find_part, output, job=job), some))
    pairs = zip(some, records, strict=True)
    return {block.part: record for block, record in pairs if record is not None}


def remove_manifest(output: Folder) -> None:
    """Remove the manifest, which says that the job is complete, before work on it goes on."""
    output.delete(_MANIFEST)


def write_manifest(output: Folder, blocks: Sequence[Block], *, pages: bool) -> dict[str, Any]:
    """Check that every block has a whole part of the job, and write the manifest; return it.

    Args:
        output: folder of the parts.
        blocks: all blocks of the dataset.
        pages: whether to read all parts and compare their pages with the checksums, too.
    """
    plan = read_plan(output)
    parts = whole_parts(output, blocks, digest_of_plan(plan))
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
            list(pool.map(check_pages, [files[name] for name in parts]))
    if output.local is not None:  # what killed processes have left of parts that they wrote
        for path in output.local.rglob(".*.parquet.*"):
            if path.is_file():
                path.unlink(missing_ok=True)
    manifest = {
        "format": "mirror_rt dataset 1",
        "job": plan,
        "blocks": len(parts),
        "rows": sum(record["rows"] for record in parts.values()),
        "invalid": sum(record["invalid"] for record in parts.values()),
        "parts": {name: record | {"bytes": files[name].bytes} for name, record in parts.items()},
    }
    _write(output, _MANIFEST, manifest)
    return manifest


def _write(output: Folder, name: str, value: Any) -> None:
    with output.new_file(name) as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
