"""Save the batches of a window that have run, so that a killed job does not run them again.

    begun-00008192.npy  vectors [m, D] of the first batches of the window that begins at text 8192

The batches of a window follow from its texts alone, and run in one order. So the number of vectors
says which batches they are of, and when they were saved changes nothing in the output.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from mirror_rt.errors import DataError
from mirror_rt.io.atomic import new_file
from mirror_rt.pipeline.results import Indices, Vectors

# The work that a kill may cost. Saving takes milliseconds, for it writes one window at most.
SECONDS_BETWEEN = 30.0


class SavedBatches:
    """Saves what a window has finished, every half minute, in the folder of the job.

    Several processes may do so in one folder, each for windows of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = time.monotonic()

    def restore(self, start: int, batches: list[Indices], vectors: Vectors) -> int:
        """Fill in the vectors that were saved; return the number of batches that they are of.

        Raises:
            DataError: the file is damaged.
        """
        path = begun_window(self._folder, start)
        if not path.is_file():
            return 0
        saved = _load(path)
        ends = np.cumsum([len(batch) for batch in batches])
        done = int(np.searchsorted(ends, len(saved))) + 1
        if done > len(ends) or ends[done - 1] != len(saved) or saved.shape[1:] != vectors.shape[1:]:
            raise damaged(path, "its vectors are not those of the first batches")
        vectors[np.concatenate(batches[:done])] = saved
        return done

    def offer(self, start: int, batches: list[Indices], vectors: Vectors) -> None:
        """Save the vectors of the batches that have run, if the last time is long enough ago."""
        if time.monotonic() - self._last < SECONDS_BETWEEN:
            return
        with new_file(begun_window(self._folder, start), overwrite=True) as file:
            np.save(file, vectors[np.concatenate(batches)])
        self._last = time.monotonic()


def begun_window(folder: Path, start: int) -> Path:
    """Return the path of what is saved of the window that begins at the text `start`."""
    return folder / f"begun-{start:08d}.npy"


def count_begun(folder: Path, first: int) -> int:
    """Return how many vectors are saved of windows that begin at the text `first`, or later.

    Raises:
        DataError: a file is damaged.
    """
    paths = [path for path in folder.glob("begun-*.npy") if int(path.stem[6:]) >= first]
    return sum(len(_load(path)) for path in paths)


def _load(path: Path) -> Vectors:
    try:
        vectors: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, error) from error
    return vectors


def damaged(path: Path, why: object) -> DataError:
    """Return the error for a file of a job that cannot be read."""
    return DataError(f"{path} is damaged ({why}): start anew with --overwrite, without --resume")
