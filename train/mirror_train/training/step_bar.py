"""A bar of training steps, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirror_rt.progress import progress_bar

__all__ = ["shows_bars", "step_bar"]


def shows_bars(wanted: bool | None) -> bool:
    """Whether to show bars: as told, else where standard error is a terminal."""
    return sys.stderr.isatty() if wanted is None else wanted


@contextmanager
def step_bar(
    steps: int, show: bool | None, desc: str, *, done: int = 0, unit: str = "step", size: int = 1
) -> Iterator[Callable[[float], None]]:
    """Show a bar of a run's steps; what it gives takes the loss after each.

    Args:
        steps: of the run.
        show: see `shows_bars`.
        desc: what runs.
        done: steps of an earlier session of the run.
        unit: what is counted.
        size: how many units a step has.
    """
    bar = progress_bar(steps * size, shows_bars(show), unit=unit, desc=desc, initial=done * size)

    def on_step(loss: float) -> None:
        bar.set_postfix_str(f"loss={loss:.4f}")
        bar.update(size)

    try:
        yield on_step
    finally:
        bar.close()
