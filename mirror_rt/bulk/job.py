"""OUTPUT.partial: what is finished of a job, so that a killed one can go on.

    job.json            what the job is: of another job, it is refused
    part-00000000.npz   vectors and ids of the first window; ...
    OUTPUT              put together of the parts, before it takes its place
    complete.json       written when that is whole

Every file appears whole. A kill at any point leaves a folder from which the job goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from mirror_rt.errors import DataError, OutputExistsError
from mirror_rt.io.atomic import check_free, check_space, new_file, write_json
from mirror_rt.io.sink import Embeddings, invalid_rows
from mirror_rt.io.vectors import open_sink, output_files

__all__ = ["JobFolder", "open_job", "partial_folder"]

_JOB, _COMPLETE, _LOCK = "job.json", "complete.json", ".lock"


class _Part(NamedTuple):
    vectors: Embeddings
    ids: list[int | str] | None


class JobFolder:
    """The folder of a job that is open; `open_job` makes one.

    Attributes:
        folder: OUTPUT.partial.
        output: the file to be.
        with_ids: whether rows have ids of their own.
        parts: number of the finished windows.
        rows: texts in them.
    """

    def __init__(self, output: Path, *, with_ids: bool) -> None:
        self.folder = partial_folder(output)
        self.output = output
        self.with_ids = with_ids
        self.parts = 0
        self.rows = 0
        self._bytes = 0

    def count_parts(self) -> None:
        """Find the finished windows."""
        while self._path(self.parts).is_file():
            part = self._load(self.parts)
            self.parts += 1
            self.rows += len(part.vectors)
            self._bytes += part.vectors.nbytes

    @property
    def is_complete(self) -> bool:
        """Whether all that is left is to put the output in its place."""
        return (self.folder / _COMPLETE).is_file()

    def save(self, vectors: Embeddings, ids: list[int | str] | None) -> None:
        """Keep the vectors [n, D] and ids of the next window."""
        names = np.frombuffer(json.dumps(ids).encode(), dtype=np.uint8)
        with new_file(self._path(self.parts), overwrite=True) as file:
            np.savez(file, vectors=vectors, ids=names)
            file.flush()
            os.fsync(file.fileno())
        self.parts += 1
        self.rows += len(vectors)
        self._bytes += vectors.nbytes

    def assemble(self) -> None:
        """Write the output into the folder, whole."""
        check_space(self.folder / self.output.name, self._bytes)
        invalid = 0
        whole = self.folder / self.output.name
        with open_sink(whole, overwrite=True, with_ids=self.with_ids) as sink:
            for index in range(self.parts):
                part = self._load(index)
                sink.write(part.vectors, part.ids)
                invalid += int(np.count_nonzero(invalid_rows(part.vectors)))
        vectors = part.vectors
        report: dict[str, int | str] = {"rows": self.rows, "invalid": invalid}
        report |= {"dimension": vectors.shape[1], "dtype": str(vectors.dtype)}
        write_json(self.folder / _COMPLETE, report)

    def publish(self) -> dict[str, Any]:
        """Put the output in its place and remove the folder: rows, invalid, dimension, dtype."""
        report: dict[str, Any] = json.loads((self.folder / _COMPLETE).read_text())
        for target in reversed(output_files(self.output, with_ids=self.with_ids)):
            # The ids first, so that where there is an output, it is all there.
            with contextlib.suppress(FileNotFoundError):  # a kill came after this one
                (self.folder / target.name).replace(target)
        self.remove()
        return report

    def remove(self) -> None:
        """Remove the folder, what tells its state last."""
        last = [self.folder / name for name in (_JOB, _COMPLETE, _LOCK)]
        _clear(self.folder, keep=last)
        for path in last:
            path.unlink(missing_ok=True)
        self.folder.rmdir()

    def _path(self, index: int) -> Path:
        return self.folder / f"part-{index:08d}.npz"

    def _load(self, index: int) -> _Part:
        path = self._path(index)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return _Part(arrays["vectors"], json.loads(arrays["ids"].tobytes()))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path} is damaged ({error}): start anew with --overwrite, without --resume"
            ) from error


def partial_folder(output: Path) -> Path:
    """Where the finished part of a job is kept."""
    return output.with_name(f"{output.name}.partial")


@contextlib.contextmanager
def open_job(
    output: Path, plan: dict[str, Any], *, with_ids: bool, resume: bool, overwrite: bool
) -> Iterator[JobFolder]:
    """Open the job folder of an output, locked; one without a finished part goes with an error.

    Args:
        output: the file to be.
        plan: JSON values that are the same whenever the same output would come out.
        with_ids: whether rows have ids of their own.
        resume: go on where there is something to go on with.
        overwrite: replace an existing output, and (without `resume`) an existing job.

    Raises:
        OutputExistsError: the output is there, or a job and `resume` is False, or another process
            works on it.
        DataError: the job was another one, or its folder is damaged.
    """
    job = JobFolder(output, with_ids=with_ids)
    begun = _is_begun(job.folder)
    if begun and not (resume or overwrite):
        raise OutputExistsError(
            f"{job.folder} holds an unfinished job: go on with --resume, or start anew with "
            "--overwrite"
        )
    if not (begun and resume and job.is_complete):
        for path in output_files(output, with_ids=with_ids):
            check_free(path, overwrite=overwrite)
            if path.is_dir():
                raise IsADirectoryError(f"cannot write the file {path}: a folder has that name")
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / _LOCK).open("ab") as lock:
        _lock(lock, job.folder)
        try:
            _begin(job, plan, resume=begun and resume)
            yield job
        except BaseException:
            nothing_to_lose = job.parts == 0 and not (begun and resume)
            if job.folder.exists() and nothing_to_lose:
                job.remove()
            raise


def _begin(job: JobFolder, plan: dict[str, Any], *, resume: bool) -> None:
    if resume:
        _check_plan(job.folder, plan)
        if not job.is_complete:
            job.count_parts()
        return
    _clear(job.folder, keep=[job.folder / _LOCK])
    write_json(job.folder / _JOB, plan)


def _clear(folder: Path, *, keep: list[Path]) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            path.rmdir()  # of files.check_free, left by a kill
        elif path not in keep:
            path.unlink()


def _is_begun(folder: Path) -> bool:
    """Whether the folder has a finished part; DataError where it holds something else."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if names and not {_JOB, _COMPLETE} & names:
        raise DataError(f"{folder} is in the way: it is not the folder of an unfinished job")
    return bool(names - {_JOB})


def _check_plan(folder: Path, plan: dict[str, Any]) -> None:
    if not (folder / _JOB).is_file():  # killed while a complete job was being removed
        return
    try:
        before = json.loads((folder / _JOB).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{folder / _JOB} is damaged: {error}") from error
    now = json.loads(json.dumps(plan))
    for name in now.keys() | before.keys():
        if before.get(name) != now.get(name):
            raise DataError(
                f"{folder} is of another job, {name} was {before.get(name)!r} and is "
                f"{now.get(name)!r}: start anew with --overwrite, without --resume"
            )


def _lock(file: IO[bytes], folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two jobs of one output are the user's to avoid
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputExistsError(f"{folder} is in use: another process is at work on it") from None
