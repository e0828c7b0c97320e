"""Reword errors for the command line: options instead of Python's arguments, types and values."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Names of options that differ from those of fields; a repeated option is named in the singular.
NAMES = {
    "normalize_embeddings": "normalize",
    "provider_options": "provider_option",
    "languages": "lang",
    "model_aliases": "model_alias",
    "cors_origins": "cors_origin",
    "precisions": "precision",
    "targets": "target",
}
_TYPES = {
    "NoneType": "null", "bool": "true or false", "dict": "an object", "float": "a number",
    "int": "a number", "list": "a list",
}  # fmt: skip
_VALUE = r"True|False|None|'[^']*'|\[[^]]*\]|\{'\w+': \w+\}|[\w.]+"


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return f"--{NAMES.get(name, name).replace('_', '-')}"


def for_the_command_line(message: str, names: Iterable[str]) -> str:
    """Return an error's message with flags where it names arguments of Python.

    Args:
        message: the message, of one line.
        names: names of the options of the command, as they stand in the parsed arguments.
    """
    options = set(names)
    fields = options | {field for field, name in NAMES.items() if name in options}
    message = re.sub(
        r"\bexpected str, got (\w+)",
        lambda found: f"expected a text, got {_TYPES.get(found[1], found[1])}",
        message,
    )
    if not fields:
        return message
    any_field = "|".join(sorted(map(re.escape, fields), key=len, reverse=True))
    message = re.sub(rf"(--[\w-]+) \((?:{any_field})=True\)", r"\1", message)
    message = re.sub(
        rf"(?<![\w'\"/.-])({any_field})=({_VALUE})(?![\w/'\"])",
        lambda found: _given(found[1], found[2]),
        message,
    )
    message = re.sub(
        rf"^({any_field})(?= (?:must|goes|needs)\b)", lambda found: flag_of(found[1]), message
    )
    # Elsewhere only a name with "_" is surely no word of English.
    return re.sub(
        rf"(?<![\w'\"/.-])({any_field})(?![\w/='\"]|\.\w)",
        lambda found: flag_of(found[1]) if "_" in found[1] else found[1],
        message,
    )


def _given(name: str, value: str) -> str:
    """Write an argument with its value as an option: `errors='nan'` as `--errors nan`."""
    flag = flag_of(name)
    if value in ("True", "None"):
        return flag if value == "True" else f"no {flag}"
    if value == "False":
        return f"--no-{flag[2:]}"
    if pair := re.fullmatch(r"\{'(\w+)': (\w+)\}", value):
        return f"{flag} {pair[1]}={pair[2].lower()}"
    return f"{flag} {re.sub(r', *', ',', value.strip('[]')).replace(chr(39), '')}"
