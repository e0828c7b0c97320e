"""List the commands with one line each, without importing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mirror_rt.errors import ConfigError, require
from mirror_rt.plugins import load_plugins

ENTRY_POINTS = "mirror_rt.commands"
GROUPS = ("use a model", "make a model", "measure", "operate")
INCOMPLETE = (
    "the metadata of the installed package names no commands that tune and export: install "
    "mirror-rt again (in a clone: pip install -e .)"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `mirror-rt`."""

    name: str  # the word, or the two words, by which the command is called
    group: str  # the group of commands that it is listed with, one of `GROUPS`
    help: str  # one line about its effect
    # Module with the command's `Invocation`: `module:class`, or a class of the name of the
    # command's last word.
    module: str
    # Packages without which the command cannot run, each with the extra that installs it.
    needs: tuple[tuple[str, str], ...] = ()

    @property
    def line(self) -> str:
        """Return the help, with the extras that must be installed first."""
        missing = [extra for package, extra in self.needs if find_spec(package) is None]
        extras = " and ".join(dict.fromkeys(missing)).replace("|", " or ")
        noun = "extras" if " and " in extras else "extra"
        return f"{self.help} (needs the {noun} {extras})" if extras else self.help

    def check(self) -> None:
        """Raise MissingDependencyError, with the extra, for a package that the command needs."""
        for package, extra in self.needs:
            if find_spec(package) is None:
                require(package, extra=extra, purpose=f"mirror-rt {self.name}")

    def add_to(self, commands: Any) -> None:
        """Add the command and its options to argparse's subparsers."""
        first, _, second = self.name.partition(" ")
        if second:
            commands = commands.add_parser(first).add_subparsers(required=True)
        from mirror_rt.cli.parsing.invocation import add_command

        last = second or first
        module, _, name = self.module.partition(":")
        add_command(commands, last, getattr(import_module(module), name or last.title()))


def command_of(package: str, name: str, group: str, help: str, *needs: tuple[str, str]) -> Command:
    """Describe a command that is in the module of its last word in a package; see `Command`."""
    return Command(name, group, help, f"{package}.{name.split()[-1]}", needs)


_USE, _MAKE, _MEASURE, _OPERATE = GROUPS
_HUB = (("huggingface_hub", "hub"),)
_SERVE = tuple((name, "serve") for name in ("starlette", "uvicorn", "msgspec", "orjson"))
_ROWS: tuple[tuple[str, str, str, tuple[tuple[str, str], ...]], ...] = (
    ("encode", _USE, "turn the texts of a file into vectors", ()),
    ("predict", _USE, "give texts labels and values by the task heads of a bundle", ()),
    ("rerank", _USE, "score pairs of texts, or rank documents, with a cross-encoder", ()),
    ("serve", _USE, "serve vectors over HTTP, as OpenAI's and TEI's servers do", _SERVE),
    ("info", _USE, "show what a bundle or a pack is, and verify every hash", ()),
    ("models", _USE, "list well-known models that load by their name, and how", ()),
    ("pull", _USE, "download a bundle from a model hub", _HUB),
    ("distill", _MAKE, "make a static encoder of a bundle: a table of token vectors", ()),
    ("evaluate", _MEASURE, "compare models over suites of sets, with a report", ()),
    ("evaluate similarity", _MEASURE, "compare cosines with human scores of one file", ()),
    ("evaluate geometry", _MEASURE, "measure isotropy, alignment and uniformity", ()),
    ("benchmark", _MEASURE, "measure how quickly a bundle encodes on this machine", ()),
    ("doctor", _OPERATE, "examine the installation, and say how to mend it", ()),
    ("triton", _OPERATE, "write a model repository for NVIDIA Triton", ()),
    ("push", _OPERATE, "send a bundle to a model hub", _HUB),
    ("completion", _OPERATE, "let the TAB key complete a line", (("argcomplete", "completion"),)),
)
_MODULES = {"evaluate similarity": "evaluate_file", "evaluate geometry": "evaluate_file"}
_MODULES |= {"pull": "hub", "push": "hub"}
COMMANDS = tuple(
    Command(name, group, text, f"mirror_rt.cli.{_MODULES.get(name, name)}", needs)
    for name, group, text, needs in _ROWS
)


def installed_commands() -> dict[str, Command]:
    """Return all commands by name, in the order of their groups: our own and other packages'."""
    found = [*COMMANDS, *(one for table in load_plugins(ENTRY_POINTS) for one in table)]
    found.sort(key=lambda one: (*GROUPS, one.group).index(one.group))
    return {command.name: command for command in found}


def find_command(words: Sequence[str]) -> Command | None:
    """Return the command that words begin with; search other packages only if it is not our own."""
    names = [" ".join(words[:2]), *words[:1]]
    own = {command.name: command for command in COMMANDS}
    if found := own.get(names[0]) or own.get(names[1]):
        return found
    installed = installed_commands()
    if "tune" not in installed:
        raise ConfigError(f"no command {words[0]!r}: {INCOMPLETE}")
    return next((installed[name] for name in names if name in installed), None)
