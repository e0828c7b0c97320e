"""A progress bar, where one is wanted."""

from __future__ import annotations

import logging
from typing import Protocol

from mirror_rt.errors import require

__all__ = ["ProgressBar", "progress_bar"]

logger = logging.getLogger("mirror_rt")


class ProgressBar(Protocol):
    """What is used of a tqdm."""

    def update(self, n: int) -> object:
        """Count `n` more texts."""
        ...

    def set_postfix_str(self, s: str) -> object:
        """Say behind the bar what is at work."""
        ...

    def close(self) -> None:
        """Leave the bar as it is."""
        ...


class _NoBar:
    def update(self, n: int) -> None:
        """Do nothing."""

    def set_postfix_str(self, s: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


_NO_BAR = _NoBar()


def progress_bar(
    total: int,
    show: bool | None,
    *,
    unit: str = "text",
    desc: str = "encode",
    initial: int = 0,
) -> ProgressBar:
    """A bar of `total` units, `initial` of them done.

    None shows one where the logger `mirror_rt` is at INFO.
    """
    if show is None:
        show = logger.isEnabledFor(logging.INFO)
    if not show:
        return _NO_BAR
    tqdm = require("tqdm", extra="train", purpose="a progress bar").tqdm
    bar: ProgressBar = tqdm(total=total, unit=unit, desc=desc, initial=initial)
    return bar
