"""Run `mirror-rt completion`."""

from __future__ import annotations

import argparse
import os
from itertools import groupby

from mirror_rt.cli.commands import find_command, installed_commands
from mirror_rt.cli.parser import Parser, Subparsers, add_subparser
from mirror_rt.errors import require


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "completion",
        description="Print what a shell needs to complete commands, options and files at TAB.",
        examples="""
source <(mirror-rt completion bash)
mirror-rt completion bash >> ~/.bashrc
mirror-rt completion zsh >> ~/.zshrc
mirror-rt completion fish > ~/.config/fish/completions/mirror-rt.fish
""",
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="your shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    argcomplete = require("argcomplete", extra="completion", purpose="mirror-rt completion")
    print(argcomplete.shellcode(["mirror-rt"], shell=arguments.shell))


def complete() -> None:
    """Answer the shell, which has put the line so far into the environment; end the process."""
    argcomplete = require("argcomplete", extra="completion", purpose="completing a line")
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = line.split(" ")[1:-1]  # the last one is being typed
    chosen = find_command(words) if words else None
    parser = Parser(prog="mirror-rt")
    commands = parser.add_subparsers()
    if chosen is not None:
        chosen.add_to(commands)
    else:
        for first, names in groupby(sorted(installed_commands()), lambda name: name.split()[0]):
            seconds = [name.split()[1] for name in names if " " in name]
            inner = commands.add_parser(first).add_subparsers()
            for second in seconds:
                inner.add_parser(second)
    argcomplete.autocomplete(parser)
