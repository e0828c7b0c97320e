"""Helpers that several benchmarks share; they need the standard library alone."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never found half written."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_between(document: Path, markers: tuple[str, str], text: str) -> None:
    """Replace the part of a document between two marker lines, which end with a line break."""
    begin, end = markers
    before, first, rest = document.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise SystemExit(f"{document} lacks the markers {begin.strip()} and {end.strip()}")
    write_whole(document, before + begin + text + end + after)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def median_ratio(
    rounds: Sequence[dict[str, Any]], figure: Callable[[Any], float], ours: str, *theirs: str
) -> float | None:
    """Return the median over the rounds of the ratio of ours to the least of `theirs`.

    Args:
        rounds: the findings of each round, by contender.
        figure: takes the figure to compare from the findings on one contender.
        ours: name of the first contender.
        theirs: names of the others.

    Returns:
        None if no round has all of the contenders.
    """
    whole = [found for found in rounds if all(name in found for name in (ours, *theirs))]
    ratios = [figure(one[ours]) / min(figure(one[name]) for name in theirs) for one in whole]
    return statistics.median(ratios) if ratios else None
