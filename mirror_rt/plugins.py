"""Find the additions of installed packages, by the entry points in their metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirror_rt.errors import MissingDependencyError


def load_plugins(group: str) -> Iterator[Any]:
    """Load all objects that installed packages register in a group of entry points."""
    from importlib.metadata import entry_points  # imported here: slow, and rarely needed

    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        yield entry.load()


def load_plugin(group: str, name: str, *, purpose: str) -> Any:
    """Load the object that is registered under a name in a group of entry points."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise MissingDependencyError(
        f"{purpose} needs the entry point {name!r} of {group}, which no installed package "
        "has: install mirror-rt (in a clone: pip install -e .), and run it again"
    )
