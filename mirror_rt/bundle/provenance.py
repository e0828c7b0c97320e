"""Who wrote a manifest, and when."""

from __future__ import annotations

import datetime
from typing import TypedDict

__all__ = ["Provenance", "made_now"]


class Provenance(TypedDict):
    """Fields of a manifest and of an index that say how the file came to be.

    Attributes:
        generator: the program and its version.
        created: the time, in ISO 8601, in UTC.
    """

    generator: str
    created: str


def made_now() -> Provenance:
    """Return the fields of a file that is written now, by this version."""
    from mirror_rt import __version__  # its lookup is slow

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"generator": f"mirror-rt {__version__}", "created": now}
