"""Record which program wrote a manifest, and when."""

from __future__ import annotations

import datetime
from typing import TypedDict

__all__ = ["Provenance", "made_now"]


class Provenance(TypedDict):
    """The fields of a manifest or an index that say how the file was made.

    Attributes:
        generator: program that wrote the file, and its version.
        created: time of writing, in ISO 8601, in UTC.
    """

    generator: str
    created: str


def made_now() -> Provenance:
    """Return the fields for a file that is written now, by this version."""
    from mirror_rt import __version__  # imported here because looking it up is slow

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"generator": f"mirror-rt {__version__}", "created": now}
