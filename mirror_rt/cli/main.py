"""Parse the command line, run the command, and turn every error into one line and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence

from mirror_rt.cli.commands import INCOMPLETE, Command, find_command, installed_commands
from mirror_rt.cli.parsing.parser import (
    Parser,
    UsageError,
    message_of,
    suggestion,
    usage_error,
)
from mirror_rt.errors import NO_MEMORY, ConfigError, MirrorError, lacks_memory

_ABOUT = "Turn a masked language model into a text encoder, and run it without torch."
_WAY = (
    "The way of the data: strings --tune--> Hugging Face folder --export--> bundle --encode--> "
    "vectors. 'mirror-rt demo' walks it."
)
_FIRST = (
    "Name a command. 'mirror-rt encode all-MiniLM-L6-v2 --input texts.txt --output vectors.npy' "
    "turns texts into vectors; 'mirror-rt COMMAND --help' ends with examples to copy."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    words = sys.argv[1:] if argv is None else list(argv)
    arguments, invocation = argparse.Namespace(), None
    # A shell lets the jobs that a script puts in the background ignore Ctrl-C; these commands stop
    # so that they can be resumed, wherever they were started.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack the letters of the texts
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    try:
        if "_ARGCOMPLETE" in os.environ:
            from mirror_rt.cli.completion import complete

            complete()
        command = find_command(words) if words and not words[0].startswith("-") else None
        if command is None:
            return _without_a_command(words)
        arguments = parse_words(command, words)
        command.check()
        invocation = arguments.command.of(arguments)
        code: int | None = invocation.run()
        sys.stdout.flush()
    except UsageError as error:
        arguments.parser.error(str(error))
    except ConfigError as error:
        return _fail(error, 2, arguments)
    except MirrorError as error:
        return _fail(error, 1, arguments)
    except KeyboardInterrupt as error:
        kept = invocation.kept() if invocation is not None else ""
        return _fail(str(error) or ": ".join(filter(None, ["interrupted", kept])), 130, arguments)
    except BrokenPipeError:
        # The reader (such as `head`) is gone, so nobody reads the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(error, 1, arguments)
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        return _fail(NO_MEMORY, 1, arguments)
    return code or 0


def parse_words(command: Command, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a line, from the command on; raise SystemExit for wrong ones."""
    parser = Parser(prog="mirror-rt")
    command.add_to(parser.add_subparsers(required=True))
    return parser.parse_args(words)


def _without_a_command(words: Sequence[str]) -> int:
    """Answer a line without a command: --help, --version, nothing, or something unknown."""
    installed = installed_commands()
    if not words:
        print(f"{_FIRST}\n\n{_overview(installed)}", file=sys.stderr)
        return 2
    if words[0] == "--version":
        from mirror_rt.version import __version__

        print(f"mirror-rt {__version__}")
        return 0
    of_group = {name: one for name, one in installed.items() if name.startswith(f"{words[0]} ")}
    if words[0] in ("-h", "--help") or (of_group and words[1:2] in (["-h"], ["--help"])):
        print(_overview(of_group or installed))
        return 0
    if of_group:
        known, given = [name.split()[1] for name in of_group], words[1] if words[1:] else ""
        said = f"'mirror-rt {words[0]}' needs one of {', '.join(known)}"
        return usage_error(said, suggestion(given, known), f"mirror-rt {words[0]}")
    kind = "option" if words[0].startswith("-") else "command"
    near = suggestion(words[0], [*installed, "--help", "--version"])
    return usage_error(f"there is no {kind} {words[0]!r}", near, "mirror-rt")


def _overview(commands: Mapping[str, Command]) -> str:
    """List commands by their groups, each with its help beside it."""
    width, indent = max(map(len, commands)), min(shutil.get_terminal_size().columns, 100)
    lines = ["usage: mirror-rt COMMAND ...", "", _ABOUT]
    group = ""
    for name, command in commands.items():
        if command.group != group:
            group = command.group
            lines += ["", f"{group}:"]
        first = f"  {name:<{width}}  "
        lines += textwrap.wrap(
            command.line, indent, initial_indent=first, subsequent_indent=" " * len(first)
        )
    end = (
        _WAY
        if "tune" in commands or "train mirror" in commands or len(commands) < 5
        else f"Not everything is listed: {INCOMPLETE}."
    )
    return "\n".join([*lines, "", *textwrap.wrap(end, indent)])


def _fail(error: Exception | str, code: int, arguments: argparse.Namespace) -> int:
    said = error if isinstance(error, str) else message_of(error, vars(arguments))
    print(f"mirror-rt: error: {said}", file=sys.stderr)
    return code
