"""Parse the words of a command; say what is wrong with them in three lines, with a suggestion."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

Subparsers = Any  # argparse keeps the type of add_subparsers() private

# Former names of options. A command that has the new one takes the old one, too.
_RENAMED = {"--language": "--lang", "--langs": "--lang", "--base": "--model"}
_KINDS = {"int": "an integer", "float": "a number", "_jobs": "an integer or auto"}


class Parser(argparse.ArgumentParser):
    """A parser whose errors take three lines: what is wrong, what to write, where to read on.

    Attributes:
        example: a line that works, shown where there is nothing to suggest.
    """

    example = ""

    def parse_known_args(  # type: ignore[override]  # argparse declares overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the words; take former names of options, and refuse words that mean nothing."""
        words = [self._renamed(word) for word in (sys.argv[1:] if args is None else args)]
        if self._subparsers is None:
            self._refuse_unknown_options(words)
        namespace, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(
                f"cannot tell what {unknown[0]!r} is for: models stand right behind the command, "
                "or behind --model"
            )
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """End with status 2; a second line of the message is the suggestion."""
        said, _, hint = message.removeprefix("argument ").partition("\n")
        said = said.replace(": must be", " must be", 1)
        needs = f"{self.prog.removeprefix('mirror-rt ')} needs"
        said = re.sub("^the following arguments are required:", needs, said)
        said = re.sub("^one of the arguments (.*) is required", rf"{needs} \1", said)
        if found := re.fullmatch(r"(.*): invalid (\w+) value: (.*)", said):
            said = f"{found[1]} must be {_KINDS.get(found[2], 'usable')}, got {found[3]}"
        sys.exit(usage_error(said, hint or f"for example: {self.example}", self.prog))

    def format_help(self) -> str:
        """Return the help; its first line names what must be given, and no other options."""
        needed = [*self._get_positional_actions(), *self._get_optional_actions()]
        optional = {id(one) for group in self._mutually_exclusive_groups if not group.required
                    for one in group._group_actions}  # fmt: skip
        shown = [self.prog]
        for one in needed:
            if one.option_strings and not one.required:
                continue
            name = str(one.metavar or one.dest)
            words = " ".join([*one.option_strings[:1], name])
            shown.append(f"[{words}]" if id(one) in optional else words)
        self.usage = " ".join([*shown, "[--OPTION ...]"]).replace("%", "%%")
        return super().format_help()

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Refuse them before argparse asks for those that are missing because of a wrong letter."""
        known = self._option_string_actions
        for flag in (word.partition("=")[0] for word in words):
            if flag.startswith("--") and not any(one.startswith(flag) for one in known):
                self.error(f"there is no option {flag}\n{suggestion(flag, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            text = f"expected one of {', '.join(known)}, got {value!r}"
            raise argparse.ArgumentError(action, f"{text}\n{suggestion(str(value), known)}")

    def _renamed(self, word: str) -> str:
        flag, equals, value = word.partition("=")
        new = _RENAMED.get(flag, flag)
        known = self._option_string_actions
        return f"{new}{equals}{value}" if new in known and flag not in known else word


def suggestion(word: str, known: Collection[str]) -> str:
    """Return "did you mean ...?" for the known word that is most like this one; "" if none is."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def usage_error(said: str, hint: str, command: str) -> int:
    """Print what is wrong, what to write instead, and the help to read; return exit status 2."""
    lines = [f"mirror-rt: error: {said}", hint, f"all options: {command} --help"]
    print("\n".join(filter(None, lines)), file=sys.stderr)
    return 2


def add_subparser(
    commands: Subparsers, name: str, *, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command whose help ends in examples to copy; `commands.py` has its one-line help."""
    lines = examples.strip().splitlines()
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        description=description,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if isinstance(parser, Parser):
        parser.example = next((one for one in lines if not one.endswith("\\")), "")
    return parser


def add_model(
    parser: argparse.ArgumentParser,
    *,
    help: str = "folder or hub name of a bundle",
    metavar: str = "BUNDLE",
    flag: str = "--model",
    dest: str | None = None,
    required: bool = True,
    several: bool = False,
) -> None:
    """Add what a command works on: a word right behind its name, or behind --model.

    Args:
        parser: parser of the command.
        help: what may be given.
        metavar: its name in the help.
        flag: the option that does the same.
        dest: its name in the parsed arguments; None for that of the flag.
        required: whether one must be given.
        several: whether more than one may be given.
    """
    ways = parser.add_mutually_exclusive_group(required=required)
    name, few, many = dest or flag[2:], "*" if several else "?", "+" if several else None
    # Without a default of its own, the word does not undo the option when it is left out.
    ways.add_argument(
        name, nargs=few, default=argparse.SUPPRESS, metavar=metavar, help=f"{help}; or {flag}"
    )
    ways.add_argument(flag, dest=name, nargs=many, metavar=metavar, help=argparse.SUPPRESS)
