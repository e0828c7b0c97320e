"""Show a progress bar if one is wanted."""

from __future__ import annotations

import logging
from typing import Protocol

from mirror_rt.errors import require

__all__ = ["ProgressBar", "progress_bar"]

logger = logging.getLogger("mirror_rt")


class ProgressBar(Protocol):
    """The methods of a tqdm bar that are used here."""

    def update(self, n: int) -> object:
        """Count `n` more texts."""
        ...

    def set_postfix_str(self, s: str) -> object:
        """Show behind the bar what is being done."""
        ...

    def close(self) -> None:
        """End the bar, and leave it on the screen."""
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
    """Return a bar of `total` units, `initial` of which are done.

    If `show` is None, the bar is shown if the logger `mirror_rt` is at level INFO.
    """
    if show is None:
        show = logger.isEnabledFor(logging.INFO)
    if not show:
        return _NO_BAR
    tqdm = require("tqdm", extra="train", purpose="a progress bar").tqdm
    bar: ProgressBar = tqdm(total=total, unit=unit, desc=desc, initial=initial)
    return bar
