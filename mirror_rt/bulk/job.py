"""Keep the finished windows of a job in OUTPUT.partial, so that a killed job can be resumed.

    job.json            the plan of the job; the folder of a different job is refused
    part-00000000.npz   vectors and ids of the first window; ...
    OUTPUT              assembled from the parts, before it is moved to its place
    complete.json       written when OUTPUT is complete

Every file appears only when it is complete. After a kill at any point, the job can be resumed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.bulk.plan import refuse_other_plan
from mirror_rt.errors import DataError, OutputExistsError
from mirror_rt.io.atomic import check_free, check_space, new_file, write_json
from mirror_rt.io.vectors import open_sink, output_files
from mirror_rt.kept_work import Identity
from mirror_rt.pipeline.results import RowCounts
from mirror_rt.system import lock
from mirror_rt.vectors.quantization import Embeddings

logger = logging.getLogger("mirror_rt")

# The errors of numpy and zipfile for a damaged archive.
_DAMAGED = (OSError, ValueError, KeyError, EOFError, AttributeError, SyntaxError, RuntimeError,
            NotImplementedError, TypeError, zlib.error, zipfile.BadZipFile)  # fmt: skip

_JOB, _COMPLETE, _LOCK = "job.json", "complete.json", ".lock"


class JobFolder:
    """The folder OUTPUT.partial of an open job; `open_job` makes one."""

    def __init__(self, output: Path, *, with_ids: bool) -> None:
        self.folder = output.with_name(f"{output.name}.partial")
        self.output, self.with_ids = output, with_ids
        self.parts = 0  # number of finished windows
        self.counts = RowCounts()  # the texts in them
        self._bytes = 0

    def count_parts(self) -> None:
        """Count the finished windows and their rows, up to one that is damaged: it is lost."""
        while self._path(self.parts).is_file():
            try:
                vectors, _, counts = self._load(self.parts)
            except DataError as error:
                logger.warning("%s: going on with the texts of this part", error)
                return
            self._count(vectors, counts)

    @property
    def is_complete(self) -> bool:
        """Return whether the output only has to be moved to its place."""
        return (self.folder / _COMPLETE).is_file()

    def save(self, vectors: Embeddings, ids: list[int | str] | None, counts: RowCounts) -> None:
        """Save the vectors [n, D], ids and counts of the next window."""
        names, counted = (
            np.frombuffer(json.dumps(one).encode(), dtype=np.uint8)
            for one in (ids, counts.to_dict())
        )
        with new_file(self._path(self.parts), overwrite=True) as file:
            np.savez(file, vectors=vectors, ids=names, counts=counted)
            file.flush()
            os.fsync(file.fileno())
        self._count(vectors, counts)

    def _count(self, vectors: Embeddings, counts: RowCounts) -> None:
        self.parts += 1
        self.counts += counts
        self._bytes += vectors.nbytes

    def assemble(self, written: Callable[[Embeddings], Embeddings]) -> None:
        """Write the complete output, which has the vectors as `written`, into the folder."""
        whole = self.folder / self.output.name
        check_space(whole, self._bytes)
        with open_sink(whole, overwrite=True, with_ids=self.with_ids) as sink:
            for index in range(self.parts):
                vectors, ids, _ = self._load(index)
                sink.write(written(vectors), ids)
        write_json(self.folder / _COMPLETE, sink.summary | {"counts": self.counts.to_dict()})

    def publish(self) -> dict[str, Any]:
        """Move the output into place, remove the folder; return counts, dimension, dtype."""
        report: dict[str, Any] = json.loads((self.folder / _COMPLETE).read_text(encoding="utf-8"))
        for target in reversed(output_files(self.output, with_ids=self.with_ids)):
            # The ids are moved first, so that an output that exists is complete.
            with contextlib.suppress(FileNotFoundError):  # it was moved before a kill
                (self.folder / target.name).replace(target)
        self.remove()
        return report

    def remove(self) -> None:
        """Remove the folder; the files that record its state are removed last."""
        last = [self.folder / name for name in (_JOB, _COMPLETE, _LOCK)]
        _clear(self.folder, keep=last)
        for path in last:
            path.unlink(missing_ok=True)
        self.folder.rmdir()

    def _path(self, index: int) -> Path:
        return self.folder / f"part-{index:08d}.npz"

    def _load(self, index: int) -> tuple[Embeddings, list[int | str] | None, RowCounts]:
        path = self._path(index)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                ids, counts = (json.loads(arrays[name].tobytes()) for name in ("ids", "counts"))
                return arrays["vectors"], ids, RowCounts(**counts)
        except _DAMAGED as error:
            raise DataError(f"{path} is damaged ({error})") from error


@contextlib.contextmanager
def open_job(
    output: Path, plan: Identity, *, with_ids: bool, resume: bool, overwrite: bool
) -> Iterator[JobFolder]:
    """Open and lock the job folder of an output; on an error, remove it if no part is finished.

    With `resume`, an unfinished job goes on. `overwrite` replaces an existing output and, without
    `resume`, an unfinished job.
    """
    job = JobFolder(output, with_ids=with_ids)
    begun = _is_begun(job.folder)
    resumes = begun and resume
    if begun and not (resume or overwrite):
        raise OutputExistsError(
            f"{job.folder} holds an unfinished job: go on with --resume, or start anew with "
            "--overwrite"
        )
    if not (resumes and job.is_complete):
        for path in output_files(output, with_ids=with_ids):
            check_free(path, overwrite=overwrite)
            if path.is_dir():
                raise IsADirectoryError(f"cannot write the file {path}: a folder has that name")
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / _LOCK).open("ab") as file:
        if not lock(file.fileno()):
            raise OutputExistsError(f"{job.folder} is in use: another process is at work on it")
        try:
            if resumes:
                if (kept := job.folder / _JOB).is_file():  # else killed as its folder was removed
                    refuse_other_plan(job.folder, Identity.read(kept.read_bytes(), kept), plan)
                if not job.is_complete:
                    job.count_parts()
            else:
                _clear(job.folder, keep=[job.folder / _LOCK])
                write_json(job.folder / _JOB, plan.values)
            yield job
        except BaseException:
            if job.folder.exists() and not resumes and job.parts == 0:
                job.remove()
            raise


def _clear(folder: Path, *, keep: list[Path]) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            path.rmdir()  # an empty folder of files.check_free, left by a kill
        elif path not in keep:
            path.unlink()


def _is_begun(folder: Path) -> bool:
    """Return whether the folder has a finished part; DataError if it is not the folder of a job."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if names and not {_JOB, _COMPLETE} & names:
        raise DataError(f"{folder} is in the way: it is not the folder of an unfinished job")
    return bool(names - {_JOB})
