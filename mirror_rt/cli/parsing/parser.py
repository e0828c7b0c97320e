"""Parse the words of a command, and explain mistakes in the terms of the command line.

Wrong words are answered in three lines, with a suggestion. Errors name options for settings, and
types of JSON.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from mirror_rt.cli.parsing.options import NAMES, flag_of
from mirror_rt.errors import ConfigError, MirrorError, NotText, Setting
from mirror_rt.io.atomic import os_reason

_TYPES = {
    "NoneType": "null", "bool": "true or false", "dict": "an object", "float": "a number",
    "int": "a number", "list": "a list",
}  # fmt: skip


class UsageError(ConfigError):
    """The options of a command do not go together; an example shows which do."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors take three lines: the fault, a line to write instead, the help to read.

    Attributes:
        example: a line that works, shown where there is nothing to suggest.
        needed: the entries of the first line of the help, each with its name in a namespace, in an
            error where it is missing ("" where it need not be given), and in that line.
    """

    example = ""
    needed: tuple[tuple[str, str, str], ...] = ()

    def parse_known_args(  # type: ignore[override]  # argparse declares overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the words; refuse those that mean nothing, and ask for missing ones."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            self._refuse_unknown_options(words)
        namespace, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(
                f"cannot tell what {unknown[0]!r} is for: models stand right behind the command, "
                "or behind --model"
            )
        if missing := [
            say for name, say, _ in self.needed if say and getattr(namespace, name, None) is None
        ]:
            self.error(f"{self.prog.removeprefix('mirror-rt ')} needs {', '.join(missing)}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """End with status 2; a second line of the message is the suggestion."""
        said, _, hint = message.removeprefix("argument ").partition("\n")
        said = said.replace(": must be", " must be", 1)
        sys.exit(usage_error(said, hint or f"for example: {self.example}", self.prog))

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Refuse them first: an option with a wrong letter would count as missing."""
        known = self._option_string_actions
        for flag in (word.partition("=")[0] for word in words):
            if flag.startswith("--") and not any(one.startswith(flag) for one in known):
                self.error(f"there is no option {flag}\n{suggestion(flag, known)}")


def suggestion(word: str, known: Collection[str]) -> str:
    """Return "did you mean ...?" for the known word that is most like this one; "" if none is."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def usage_error(said: str, hint: str, command: str) -> int:
    """Print the fault, a line to write instead, and the help to read; return exit status 2."""
    lines = [f"mirror-rt: error: {said}", hint, f"all options: {command} --help"]
    print("\n".join(filter(None, lines)), file=sys.stderr)
    return 2


def message_of(error: BaseException, options: Collection[str]) -> str:
    """Return an error's message in one line, with flags for the settings that are options here."""
    if isinstance(error, MirrorError):
        return " ".join(error.told(partial(_written, options)).split())
    said = os_reason(error) if isinstance(error, OSError) else str(error)
    return " ".join(said.split())


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
