"""List the commands with one line each, without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from mirror_rt.errors import ConfigError, require
from mirror_rt.plugins import load_plugins

__all__ = [
    "COMMANDS",
    "GROUP",
    "INCOMPLETE",
    "Command",
    "commands_of",
    "find_command",
    "installed_commands",
]

GROUP = "mirror_rt.commands"
INCOMPLETE = (
    "the metadata of the installed package names no commands that tune and export: install "
    "mirror-rt again (in a clone: pip install -e .)"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `mirror-rt`.

    Attributes:
        name: name of the command as it is typed.
        help: one line that says what it does.
        module: module with a function `add_parser`, which adds the command and its options to
            argparse's subparsers; the parser's default `run` runs the command.
        needs: packages without which the command cannot run, each with the extra that installs it.
    """

    name: str
    help: str
    module: str
    needs: tuple[tuple[str, str], ...] = ()

    @property
    def line(self) -> str:
        """Return the help, with the extras that must be installed first."""
        missing = [extra for package, extra in self.needs if find_spec(package) is None]
        extras = ", ".join(dict.fromkeys(missing)).replace("|", " or ")
        return f"{self.help} (needs the extra {extras})" if extras else self.help

    def check(self) -> None:
        """Check that everything is installed that the command needs.

        Raises:
            MissingDependencyError: a package is missing; it names the command and the extra.
        """
        for package, extra in self.needs:
            if find_spec(package) is None:
                require(package, extra=extra, purpose=f"mirror-rt {self.name}")


def commands_of(
    package: str, helps: Mapping[str, str], *needs: tuple[str, str]
) -> tuple[Command, ...]:
    """Describe the commands of a package, each of which is in the module of its name.

    Args:
        package: name of the package with the modules.
        helps: maps the name of each command to its help.
        needs: see `Command`.
    """
    return tuple(Command(name, text, f"{package}.{name}", needs) for name, text in helps.items())


_SERVER = tuple((name, "serve") for name in ("starlette", "uvicorn", "msgspec", "orjson"))

COMMANDS = (
    *commands_of(
        "mirror_rt.cli",
        {
            "encode": "texts to vectors",
            "predict": "labels and values by the task heads of a bundle, without torch",
            "benchmark": "throughput and latency of a bundle on this machine",
        },
    ),
    *commands_of(
        "mirror_rt.cli",
        {
            "serve": "an HTTP server with the protocols of OpenAI and text-embeddings-inference",
        },
        *_SERVER,
    ),
    *commands_of(
        "mirror_rt.cli",
        {
            "push": "a bundle to a model hub",
            "pull": "a bundle from a model hub",
        },
        ("huggingface_hub", "hub"),
    ),
    *commands_of(
        "mirror_rt.cli",
        {
            "evaluate": "suites of evaluation sets; one file of scored pairs; geometry of a space",
            "info": "what a bundle or a pack is; verifies every hash",
            "doctor": "what is installed here, and how to mend what does not fit",
            "triton": "a bundle or a pack as a model repository of NVIDIA Triton",
        },
    ),
)


def installed_commands() -> dict[str, Command]:
    """Return all commands by name, in alphabetical order: our own and those of other packages."""
    found = [*COMMANDS, *(one for table in load_plugins(GROUP) for one in table)]
    return {command.name: command for command in sorted(found, key=lambda one: one.name)}


def find_command(name: str) -> Command | None:
    """Return the command of a name or None; search other packages only if it is not our own.

    Raises:
        ConfigError: there is none, and the commands that tune and export are missing, too.
    """
    if found := {command.name: command for command in COMMANDS}.get(name):
        return found
    installed = installed_commands()
    if name not in installed and "tune" not in installed:
        raise ConfigError(f"no command {name!r}: {INCOMPLETE}")
    return installed.get(name)
