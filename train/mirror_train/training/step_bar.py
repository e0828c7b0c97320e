"""Show a progress bar of the training steps on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirror_rt.progress import progress_bar


def shows_bars(wanted: bool | None) -> bool:
    """Return `wanted`, or, where it is None, whether standard error is a terminal."""
    return sys.stderr.isatty() if wanted is None else wanted


@contextmanager
def step_bar(
    steps: int, show: bool | None, desc: str, *, done: int = 0, unit: str = "step", size: int = 1
) -> Iterator[Callable[[float], None]]:
    """Show a bar of a run's steps; yield a function to call with the loss after each step.

    `shows_bars` says what `show` means. The bar is labelled `desc`, counts `size` units a step, and
    begins after the steps that earlier sessions of the run have done.
    """
    bar = progress_bar(steps * size, shows_bars(show), unit=unit, desc=desc, initial=done * size)

    def on_step(loss: float) -> None:
        bar.set_postfix_str(f"loss={loss:.4f}")
        bar.update(size)

    try:
        yield on_step
    finally:
        bar.close()
