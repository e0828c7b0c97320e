"""Make the options that the tuning commands share from the fields of their configurations."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mirror_rt.cli.common import add_hub_options, progress
from mirror_rt.cli.parser import add_model
from mirror_train.training.run_config import RunConfig

__all__ = [
    "add_base_options",
    "add_fields",
    "add_run_options",
    "defaults_of",
    "given",
    "given_config",
]

_DEVICE = "auto, cpu, cuda or cuda:N"
_METAVARS = {int: "N", float: "X"}


def add_fields(
    group: argparse._ActionsContainer,
    config: type,
    helps: Mapping[str, str],
    *,
    defaults: Mapping[str, Any] | None = None,
    prefix: str = "",
    flags: Mapping[str, str] | None = None,
) -> None:
    """Add options for some fields of a dataclass; an option that is not given is None.

    Args:
        group: the parser, or a group of it.
        config: the dataclass.
        helps: the help text of each field.
        defaults: the values that the help names as defaults; None for options that override
            values chosen elsewhere, such as a recipe's.
        prefix: prefix of the field's name in the parsed arguments.
        flags: names of options that are not called like their field.
    """
    types = get_type_hints(config)
    for name, text in helps.items():
        flag = (flags or {}).get(name, "--" + name.replace("_", "-"))
        default = (defaults or {}).get(name)
        if default and default != "auto":
            text += (
                f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
            )
        kind, choices = _kind(types[name])
        options: dict[str, Any] = {"type": kind, "metavar": _METAVARS.get(kind)}
        if kind is bool:
            switch = argparse.BooleanOptionalAction if defaults is None else "store_true"
            options = {"action": switch, "default": None}
        elif choices:
            options = {"choices": choices}
        group.add_argument(flag, dest=prefix + name, help=text, **options)


def _kind(hint: Any) -> tuple[type, list[str]]:
    """Return the type that a field's option is parsed as, and its choices if it has any."""
    if isinstance(hint, type):
        return hint, []
    parts = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is Literal:
        return str, parts
    found = [_kind(part) for part in parts]
    return found[0][0], list(dict.fromkeys(choice for _, choices in found for choice in choices))


def defaults_of(config: type) -> dict[str, Any]:
    """Return the defaults of those fields of a dataclass that have one."""
    fields = dataclasses.fields(config)
    return {one.name: one.default for one in fields if one.default is not dataclasses.MISSING}


def given(arguments: argparse.Namespace, names: Iterable[str], prefix: str = "") -> dict[str, Any]:
    """Return the fields whose options were given, and their values."""
    found = {name: getattr(arguments, prefix + name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def given_config(arguments: argparse.Namespace, config: type, **changes: Any) -> Any:
    """Make a configuration from the options that were given, with some fields changed."""
    names = {one.name for one in dataclasses.fields(config)}
    options = given(arguments, names)
    if "show_progress_bar" in names and "quiet" in arguments:
        options["show_progress_bar"] = progress(arguments)
    return config(**options | changes)


def add_base_options(
    parser: argparse.ArgumentParser, *, what: str = "base model", note: str = ""
) -> None:
    """Add --out, --model and the options that say how the model is loaded.

    Args:
        parser: parser of the command.
        what: what the help calls the model.
        note: an addition to the help of --model.
    """
    default = defaults_of(RunConfig)["model"]
    add_model(
        parser,
        help=f"{what}: folder or hub name (default: {default.partition('/')[2]}, fetched once, "
        f"checked and cached{note})",
        metavar="MODEL",
        required=False,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write")
    add_hub_options(parser)
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help=f"run the Python code that comes with the {what}, if it needs any: read it first",
    )


def add_run_options(
    parser: argparse.ArgumentParser, config: type, helps: Mapping[str, str] | None = None
) -> argparse._ArgumentGroup:
    """Add the group of options that say how a command runs, but do not change its result.

    Args:
        parser: parser of the command.
        config: the configuration whose fields the options set.
        helps: help texts of fields besides device, seed and overwrite, or other texts for these.
    """
    own = {"device": _DEVICE, "seed": "of every random choice", "overwrite": "replace --out"}
    group = parser.add_argument_group("run")
    add_fields(group, config, own | dict(helps or {}), defaults=defaults_of(config))
    group.add_argument("--quiet", action="store_true", help="no progress bar")
    return group
