"""Run `mirror-rt completion`, and answer the shell at TAB."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Literal

from mirror_rt.cli.commands import find_command, installed_commands
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.cli.parsing.parser import Parser
from mirror_rt.errors import require


@dataclass(frozen=True)
class Completion(Invocation):
    """Print the code by which a shell completes commands, options and files at TAB.

    Examples:
        source <(mirror-rt completion bash)
        mirror-rt completion bash >> ~/.bashrc
        mirror-rt completion zsh >> ~/.zshrc
        mirror-rt completion fish > ~/.config/fish/completions/mirror-rt.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], Help("your shell", word=True, flag=None)]

    def run(self) -> None:
        argcomplete = require("argcomplete", extra="completion", purpose="mirror-rt completion")
        print(argcomplete.shellcode(["mirror-rt"], shell=self.shell))


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
            inner = commands.add_parser(first).add_subparsers()
            for second in [name.split()[1] for name in names if " " in name]:
                inner.add_parser(second)
    argcomplete.autocomplete(parser)
