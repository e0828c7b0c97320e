"""Run `mirror-rt serve`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from mirror_rt.cli.options import add_options, build, from_arguments, from_environment, from_file
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server.config import ListenConfig, ServerConfig

_PREFIX = "MIRROR_RT_SERVE_"


@dataclass(frozen=True, slots=True)
class _Command:
    """Say what the command itself does.

    Attributes:
        source: folder or hub name.
        check: do all of the start but listen, run each model once, and end: with 0, or with what
            is wrong.
    """

    source: str | None = None
    check: bool = False


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "serve",
        description="Serve a bundle, or the languages of a pack, until SIGTERM or Ctrl-C.\n"
        "/docs describes the paths. Every option is also an environment variable\n"
        f"({_PREFIX}PORT=8080 for --port 8080, {_PREFIX}SOURCE for the bundle; lists\n"
        "with commas) and a key of the file that --config names (port = 8080). A flag goes\n"
        "before a variable, and that before the file. API keys have no flag, which others could\n"
        f"see: {_PREFIX}API_KEYS, api_keys in the file, or a file of their own.",
        examples="""
mirror-rt serve all-MiniLM-L6-v2
mirror-rt serve bundle
mirror-rt serve pack --host 0.0.0.0 --port 8080 --api-keys-file keys.txt
mirror-rt serve bundle --providers cuda --devices all --cuda-graphs
mirror-rt serve --config serve.toml
curl localhost:8080/v1/embeddings -d '{"input": "one text"}'
""",
    )
    add_model(
        parser,
        help="folder or hub name of a bundle or a pack",
        metavar="BUNDLE|PACK",
        dest="source",
        required=False,
    )
    parser.add_argument("--config", metavar="FILE.toml", help="options, by the names of their "
                        f"flags (default: {_PREFIX}CONFIG)")  # fmt: skip
    add_options(parser, _Command, leave_out=["source"])
    add_options(parser.add_argument_group("listening"), ListenConfig)
    add_options(parser.add_argument_group("serving"), ServerConfig, leave_out=["api_keys"])
    add_options(parser.add_argument_group("model"), LoadOptions)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    sources = [from_arguments(arguments), from_environment(os.environ, _PREFIX)]
    if path := arguments.config or os.environ.get(f"{_PREFIX}CONFIG"):
        sources.append(from_file(Path(path), _Command, ListenConfig, ServerConfig, LoadOptions))
    command = build(_Command, *sources)
    config, listen = build(ServerConfig, *sources), build(ListenConfig, *sources)
    if not command.source:
        raise ConfigError(f"no model: name a bundle or a pack, or set {_PREFIX}SOURCE")
    from mirror_rt.server import check, serve
    from mirror_rt.server.monitoring.logs import configure_logging

    configure_logging(level=listen.log_level, as_json=listen.log_format == "json")
    if command.check:
        print(f"could serve {check(command.source, config, listen)}")
        return
    serve(command.source, config, listen)
