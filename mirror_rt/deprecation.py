"""Say what is deprecated when it is used: since when, until when, and what to write instead.

`DEPRECATED` is the one list, for every surface. Its keys are names as `tests/documents/public` has
them: `mirror_rt.Encoder.old`, `mirror_rt.Encoder.encode(old)`, `mirror-rt serve --old` and
`POST /embed: old`. A public name goes only by this list: an entry stays when its name is gone,
because a test compares the names of released versions with today's.

What is deprecated keeps working by code of its own. Packages look up here the names that they
import on first use, and commands the options that flags, variables and files set. Functions,
properties and the `__post_init__` of fields call `warn_deprecated`, the server `log_deprecated`.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from typing import NamedTuple


class Deprecation(NamedTuple):
    """The way out of a public name.

    Attributes:
        since: the version that announced it, such as "0.2".
        until: the first version without it: a later major one or, before 1.0, two minor ones on.
        instead: what to write.
    """

    since: str
    until: str
    instead: str


DEPRECATED: dict[str, Deprecation] = {}


def deprecation_of(name: str, said: str = "") -> str | None:
    """Return what users of a name are told, who wrote it as `said`; None if it is here to stay."""
    one = DEPRECATED.get(name)
    return one and (
        f"{said or name} is deprecated since {one.since} and goes in {one.until}: {one.instead}"
    )


def warn_deprecated(name: str) -> None:
    """Raise a DeprecationWarning for the line outside of this project that uses such a name."""
    if message := deprecation_of(name):
        frame = sys._getframe(1)
        own = ("mirror_rt", "mirror_train", "mirror_export", "importlib")
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in own:
            frame = frame.f_back
        warnings.warn_explicit(
            message, DeprecationWarning, frame.f_code.co_filename, frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )  # fmt: skip


@functools.cache
def log_deprecated(name: str) -> None:
    """Warn in the server's log, once in a process, of a path or a field that a request has."""
    if message := deprecation_of(name):
        logging.getLogger("mirror_rt.server").warning(message)
