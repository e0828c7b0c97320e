"""Load a folder in one state: what takes its place meanwhile is not mixed with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mirror_rt.errors import BundleError
from mirror_rt.io.file_states import folder_states

T = TypeVar("T")

# More than one after another hits only where a folder is exchanged all the time.
_MOST_ATTEMPTS = 32

logger = logging.getLogger("mirror_rt")


def load_unchanged(
    folder: Path, load: Callable[[], T], discard: Callable[[T], object] = lambda _: None
) -> T:
    """Load from a folder, anew if it, a file in it or a link to it changed meanwhile.

    Files are hashed and opened by their paths, by several libraries. That all of them saw the same
    files is known from the states before and after.

    Args:
        folder: what is loaded from.
        load: reads all that is needed; called again after a change.
        discard: frees the result of a `load` that is not to be used.

    Raises:
        BundleError: the folder changed again and again.
    """
    for _ in range(_MOST_ATTEMPTS):
        before = folder_states(folder)
        try:
            made = load()
        except Exception:
            if before == folder_states(folder):
                raise
        else:
            if before == folder_states(folder):
                return made
            discard(made)
        logger.info("%s was changed or replaced while it was loaded: loading it again", folder)
    raise BundleError(
        f"{folder} was changed or replaced {_MOST_ATTEMPTS} times while it was loaded: load it "
        "when nothing writes to it"
    )
