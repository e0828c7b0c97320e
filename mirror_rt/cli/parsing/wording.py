"""Write what an error names as the command line does: options for settings, JSON for values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from mirror_rt.cli.parsing.options import NAMES, flag_of
from mirror_rt.errors import MirrorError, NotText, Setting

_TYPES = {
    "NoneType": "null", "bool": "true or false", "dict": "an object", "float": "a number",
    "int": "a number", "list": "a list",
}  # fmt: skip


def message_of(error: BaseException, options: Collection[str]) -> str:
    """Return an error's message in one line, with flags for the settings that are options here."""
    if isinstance(error, MirrorError):
        return " ".join(error.told(partial(_written, options)).split())
    return " ".join(str(error).split())


def _written(options: Collection[str], part: str | Setting) -> str:
    if isinstance(part, NotText):
        return f"expected a text, got {_TYPES.get(part.type, part.type)}"
    if not isinstance(part, Setting) or NAMES.get(part.name, part.name) not in options:
        return str(part)
    flag, value = flag_of(part.name), part.value
    if value is ... or value is True:
        return flag
    if value is None or value is False:
        return f"no {flag}" if value is None else f"--no-{flag[2:]}"
    if isinstance(value, Mapping):
        return " ".join(f"{flag} {name}={one}" for name, one in value.items())
    listed = isinstance(value, list | tuple)
    return f"{flag} {','.join(map(str, value)) if listed else value}"
