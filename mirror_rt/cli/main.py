"""Parsing, dispatch, and the one place where errors become one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mirror_rt import __version__
from mirror_rt.cli import (
    benchmark,
    burt,
    cf,
    demo,
    doctor,
    encode,
    evaluate,
    export,
    flow,
    info,
    multitask,
    predict,
    pull,
    push,
    recipes,
    serve,
    study,
    triton,
    tune,
)
from mirror_rt.errors import ConfigError, MirrorError

__all__ = ["main"]

_COMMANDS = (
    tune, flow, cf, multitask, burt, recipes, export, encode, predict, serve, triton, evaluate,
    study, benchmark, info, doctor, push, pull, demo,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        return _fail(error, 2)
    except MirrorError as error:
        return _fail(error, 1)
    except KeyboardInterrupt as error:
        return _fail(str(error) or "interrupted", 130)
    except BrokenPipeError:
        # The reader (head, for example) is gone: nothing is left to say, and nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(error, 1)
    return code or 0


def _fail(error: Exception | str, code: int) -> int:
    message = " ".join(str(error).split())
    print(f"mirror-rt: error: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mirror-rt",
        description="Turn a masked language model into a text encoder, and run it without torch.",
        epilog="The way of the data: strings --tune--> Hugging Face folder --export--> bundle "
        "--encode--> vectors. 'mirror-rt demo' walks it.",
    )
    parser.add_argument("--version", action="version", version=f"mirror-rt {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
