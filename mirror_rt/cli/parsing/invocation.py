"""Make a command out of a dataclass: its options by groups, its help, its run."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import shutil
import textwrap
from functools import partial
from typing import Any, Self, get_args, get_origin

from mirror_rt.cli.parsing.kinds import BOOLEAN, Kind, kind_of
from mirror_rt.cli.parsing.options import (
    Given,
    Group,
    Option,
    build,
    from_arguments,
    nested,
    section,
)
from mirror_rt.cli.parsing.parser import Parser, suggestion

Container = argparse.ArgumentParser | argparse._ArgumentGroup


class Invocation:
    """A command as it was called: a dataclass of its options, with the method that runs it.

    The docstring of a subclass is the description in the help, and its "Examples" stand below.
    """

    def run(self) -> int | None:
        """Run the command; return its exit status, None for 0."""
        raise NotImplementedError

    def kept(self) -> str:
        """Say what Ctrl-C leaves."""
        return ""

    @classmethod
    def listed(cls) -> str:
        """Return lines that the description ends with."""
        return ""

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Make the invocation of the arguments that were parsed."""
        return build(cls, from_arguments(arguments))


def add_command(commands: Any, name: str, command: type[Invocation]) -> None:
    """Add a command to argparse's subparsers; its module's line in `commands.py` is its help."""
    lines = section(command.__doc__, "Examples")
    parser = commands.add_parser(
        name,
        description=_description(command),
        epilog="examples:\n" + "\n".join(f"  {line}" for line in lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.example = next((one for one in lines if not one.endswith("\\")), "")
    add_options(parser, command)
    parser.usage = " ".join(
        [parser.prog, *(shown for *_, shown in parser.needed), "[--OPTION ...]"]
    )
    parser.set_defaults(command=command, parser=parser)


def add_options(
    parser: argparse.ArgumentParser,
    type_: type[Any],
    group: Group | None = None,
    to: Container | None = None,
) -> None:
    """Add the options of a dataclass, and those of the fields that are annotated with a group."""
    group, to = group or Group(), to or parser
    if group.title:
        to = parser.add_argument_group(group.title, group.text)
    for option in group.options(type_):
        _add(parser, to, option)
    for hint, inner in nested(type_).values():
        if inner is not None:
            add_options(parser, get_args(hint)[0] if get_origin(hint) is Given else hint, inner, to)


def _description(command: type[Invocation]) -> str:
    """Return the docstring up to its first section, filled to the width of the terminal."""
    text = inspect.cleandoc(command.__doc__ or "").partition("\n\nExamples:")[0]
    width = min(shutil.get_terminal_size().columns, 100)
    paragraphs = [
        textwrap.fill(one, width) for one in text.partition("\n\nAttributes:")[0].split("\n\n")
    ]
    return "\n\n".join(filter(None, [*paragraphs, command.listed()])).replace("%", "%%")


def _add(parser: argparse.ArgumentParser, to: Container, option: Option) -> None:
    kind, about = kind_of(option.hint), option.about
    common: dict[str, Any] = {"dest": option.name, "default": None, "help": _help(option, kind)}
    if kind is BOOLEAN and option.default is False:
        to.add_argument(option.flag, action="store_const", const=True, **common)
        # A flag must be able to override a value of the environment or of a file.
        common["help"] = argparse.SUPPRESS
        negative = f"--no-{option.flag[2:]}"
        to.add_argument(negative, action="store_const", const=False, **common)
        return
    if kind is BOOLEAN:
        to.add_argument(option.flag, action=argparse.BooleanOptionalAction, **common)
        return
    metavar = about.metavar or kind.metavar or option.name.rpartition("_")[2].upper()
    if metavar == "N" and "seconds" in about.text:
        metavar = "SECONDS"
    common |= {"type": partial(_checked, kind), "metavar": metavar}
    if isinstance(parser, Parser) and option.default is not dataclasses.MISSING and about.word:
        parser.needed += ((option.name, "", f"[{metavar}]"),)
    elif isinstance(parser, Parser) and option.default is dataclasses.MISSING:
        name = metavar if about.word else option.flag
        shown = metavar if about.word else f"{option.flag} {metavar}"
        parser.needed += ((option.name, name, shown),)
    if about.word:
        _add_word(parser, option, common, several=kind.several)
        return
    if kind.several and not about.many:
        common["action"] = "append"
    elif about.many or about.empty is not None:
        common |= {"nargs": "+"} if about.many else {"nargs": "?", "const": about.empty}
    # argcomplete asks for the values of an option by this name.
    to.add_argument(option.flag, **common).completer = lambda **_: kind.choices  # type: ignore[attr-defined]


def _add_word(
    parser: argparse.ArgumentParser, option: Option, common: dict[str, Any], *, several: bool
) -> None:
    """Add the object of a command: a word right behind its name, or behind its flag."""
    ways = parser.add_mutually_exclusive_group()
    name, flag = common.pop("dest"), option.flag
    few, many = ("*", "+") if several else ("?", None)
    # Without a default of its own, the word does not undo the option when it is left out.
    common["default"] = argparse.SUPPRESS
    if option.about.flag is None:
        ways.add_argument(name, nargs=few, **common)
        return
    ways.add_argument(name, nargs=few, **common | {"help": f"{common['help']}; or {flag}"})
    ways.add_argument(flag, dest=name, nargs=many, **common | {"help": argparse.SUPPRESS})


def _checked(kind: Kind, text: str) -> str:
    """Return the text as it is, if a value can be made from it."""
    if text is argparse.SUPPRESS:  # Python 3.11 checks the default of a word that is left out
        return text
    try:
        kind.convert([text] if kind.several and not kind.choices else text)
    except (TypeError, ValueError) as error:
        near = suggestion(text, kind.choices)
        message = f"must be {kind.expected}, got {text!r}\n{near}"
        raise argparse.ArgumentTypeError(message) from error
    return text


def _help(option: Option, kind: Kind) -> str:
    """Return the meaning of the option, the way to give it again, and its default."""
    text, default = option.about.text.replace("`", ""), option.default
    if kind.several and not option.about.many and not option.about.word:
        text += " (several joined by commas)" if kind.choices else " (again for more)"
    if isinstance(default, tuple) and default:
        text += f" (default {(' ' if option.about.many else ',').join(map(str, default))})"
    if isinstance(default, int | float | str) and default != "" and not isinstance(default, bool):
        text += f" (default {default:{'g' if isinstance(default, float) else ''}})"
    return text.replace("%", "%%")
