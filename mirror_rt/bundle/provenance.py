"""Record which program wrote a manifest, and when."""

from __future__ import annotations

import datetime
from typing import TypedDict


class Provenance(TypedDict):
    """The program that wrote a manifest or an index, and the time, in ISO 8601 and UTC."""

    generator: str
    created: str


def made_now() -> Provenance:
    """Return the fields for a file that is written now, by this version."""
    from mirror_rt import __version__  # imported here because looking it up is slow

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"generator": f"mirror-rt {__version__}", "created": now}
