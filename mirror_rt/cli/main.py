"""Parse the command line, run the command, and turn every error into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mirror_rt.cli.commands import INCOMPLETE, Command, find_command, installed_commands
from mirror_rt.errors import ConfigError, MirrorError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        command = find_command(words[0]) if words and not words[0].startswith("-") else None
        arguments = _parser(command).parse_args(words)
        if command is not None:
            command.check()
        code = arguments.run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        return _fail(error, 2)
    except MirrorError as error:
        return _fail(error, 1)
    except KeyboardInterrupt as error:
        return _fail(str(error) or "interrupted", 130)
    except BrokenPipeError:
        # The reader (such as `head`) is gone, so nobody reads what is left to print.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(error, 1)
    return code or 0


def _fail(error: Exception | str, code: int) -> int:
    message = " ".join(str(error).split())
    print(f"mirror-rt: error: {message}", file=sys.stderr)
    return code


def _parser(chosen: Command | None) -> argparse.ArgumentParser:
    """Make a parser with the options of the chosen command, or with one line for every command."""
    parser = argparse.ArgumentParser(
        prog="mirror-rt",
        description="Turn a masked language model into a text encoder, and run it without torch.",
        epilog="The way of the data: strings --tune--> Hugging Face folder --export--> bundle "
        "--encode--> vectors. 'mirror-rt demo' walks it.",
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    if chosen is not None:
        import_module(chosen.module).add_parser(commands)
        return parser
    installed = installed_commands()
    for command in installed.values():
        commands.add_parser(command.name, help=command.line)
    if "tune" not in installed:
        parser.epilog = f"Not everything is listed: {INCOMPLETE}."
    return parser


class _ShowVersion(argparse.Action):
    """Print the version, which is looked up only on demand because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from mirror_rt import __version__

        print(f"mirror-rt {__version__}")
        parser.exit()
