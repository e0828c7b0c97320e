"""The commands that there are, told in a line each without importing them."""

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
        name: as it is typed.
        help: what it does, in a line.
        module: has a function `add_parser`, which adds the command and its options to the
            subparsers of argparse; the parser's default `run` is the command.
        needs: package and extra of everything that it cannot run without.
    """

    name: str
    help: str
    module: str
    needs: tuple[tuple[str, str], ...] = ()

    @property
    def line(self) -> str:
        """The help, with the extras that are to be installed first."""
        missing = [extra for package, extra in self.needs if find_spec(package) is None]
        extras = ", ".join(dict.fromkeys(missing)).replace("|", " or ")
        return f"{self.help} (needs the extra {extras})" if extras else self.help

    def check(self) -> None:
        """Find out whether everything is installed that the command needs.

        Raises:
            MissingDependencyError: it is not; the command and the extra are named.
        """
        for package, extra in self.needs:
            if find_spec(package) is None:
                require(package, extra=extra, purpose=f"mirror-rt {self.name}")


def commands_of(
    package: str, helps: Mapping[str, str], *needs: tuple[str, str]
) -> tuple[Command, ...]:
    """Describe the commands of a package, each in the module of its name.

    Args:
        package: the package that has the modules.
        helps: the help of each command by its name.
        needs: see `Command`.
    """
    return tuple(Command(name, text, f"{package}.{name}", needs) for name, text in helps.items())


_ONNXRUNTIME = ("onnxruntime", "cpu|gpu")
_SERVER = tuple((name, "serve") for name in ("starlette", "uvicorn", "msgspec", "orjson"))

COMMANDS = (
    *commands_of(
        "mirror_rt.cli",
        {
            "encode": "texts to vectors",
            "predict": "labels and values by the task heads of a bundle, without torch",
            "benchmark": "throughput and latency of a bundle on this machine",
        },
        _ONNXRUNTIME,
    ),
    *commands_of(
        "mirror_rt.cli",
        {
            "serve": "an HTTP server with the protocols of OpenAI and text-embeddings-inference",
        },
        *_SERVER,
        _ONNXRUNTIME,
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
    """Return all commands by name, in alphabetical order: our own, and those of other packages."""
    found = [*COMMANDS, *(one for table in load_plugins(GROUP) for one in table)]
    return {command.name: command for command in sorted(found, key=lambda one: one.name)}


def find_command(name: str) -> Command | None:
    """Return the command of a name; other packages are only looked for where it is not our own.

    Raises:
        ConfigError: there is none, perhaps because the commands that tune and export are not found.
    """
    if found := {command.name: command for command in COMMANDS}.get(name):
        return found
    installed = installed_commands()
    if name not in installed and "tune" not in installed:
        raise ConfigError(f"no command {name!r}: {INCOMPLETE}")
    return installed.get(name)
