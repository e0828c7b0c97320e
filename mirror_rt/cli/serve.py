"""mirror-rt serve."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from mirror_rt.cli.common import Subparsers, add_hub_options, add_subparser
from mirror_rt.encoding.options import OnTooLong
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import Spinning

__all__ = ["add_parser"]

_PREFIX = "MIRROR_RT_SERVE_"


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "serve",
        description="Serve a bundle, or the languages of a pack, until SIGTERM or Ctrl-C.\n"
        "/docs describes the paths. Every option is also an environment variable:\n"
        f"{_PREFIX}PORT=8080 for --port 8080; {_PREFIX}SOURCE for the bundle; API keys may\n"
        f"come from {_PREFIX}API_KEYS, separated by commas.",
        examples="""
mirror-rt serve bundle
mirror-rt serve pack --host 0.0.0.0 --port 8080 --api-keys-file keys.txt
curl localhost:8080/v1/embeddings -d '{"input": "one text"}'
""",
    )
    parser.add_argument("source", nargs="?", metavar="BUNDLE|PACK", help="folder or hub name")
    parser.add_argument("--check", action="store_true",
                        help="do all of the start but listen, run each model once, and end: with "
                        "0, or with what is wrong")  # fmt: skip
    _add_listening(parser)
    _add_limits(parser)
    _add_security(parser)
    _add_model(parser)
    parser.set_defaults(run=run)
    _take_environment(parser, os.environ)


def _add_listening(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("listening")
    group.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    group.add_argument("--port", type=int, default=8080, metavar="N", help="default 8080")
    group.add_argument("--keep-alive", type=int, default=75, metavar="SECONDS",
                       help="close a connection that is idle for longer (default 75)")  # fmt: skip
    group.add_argument("--header-timeout", type=float, default=10.0, metavar="SECONDS",
                       help="for the head of a request (default 10)")  # fmt: skip
    group.add_argument("--drain", type=int, default=30, metavar="SECONDS",
                       help="for what was accepted, after SIGTERM (default 30)")  # fmt: skip
    group.add_argument("--workers", type=int, default=1, metavar="N",
                       help="processes that share the port and the weights (default 1); one that "
                       "dies is started again")  # fmt: skip
    group.add_argument("--log-format", choices=["json", "text"], default="text")
    group.add_argument("--log-level", choices=["debug", "info", "warning", "error"],
                       default="info")  # fmt: skip


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument("--max-items", type=int, default=2048, metavar="N",
                       help="texts of one request (default 2048)")  # fmt: skip
    group.add_argument("--max-body-bytes", type=int, default=16 << 20, metavar="N",
                       help="bytes of one request (default 16777216)")  # fmt: skip
    group.add_argument("--max-waiting-texts", type=int, default=8192, metavar="N",
                       help="texts of all open requests; more are refused (429) (default 8192)",
                       )  # fmt: skip
    group.add_argument("--max-wait", type=float, default=1.0, metavar="SECONDS",
                       help="where what waits takes longer, refuse (429) (default 1)")  # fmt: skip
    group.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS",
                       help="for an answer, unless X-Request-Timeout is less (default 60)",
                       )  # fmt: skip
    group.add_argument("--body-timeout", type=float, default=30.0, metavar="SECONDS",
                       help="for the body of a request (default 30)")  # fmt: skip
    group.add_argument("--token-budget", type=int, default=2048, metavar="N",
                       help="padded tokens of a run (default 2048)")  # fmt: skip
    group.add_argument("--on-too-long", choices=get_args(OnTooLong), default="error",
                       help="a text of more tokens than the model takes, unless the request says "
                       "what to do: refuse it (413), cut it, average its chunks")  # fmt: skip


def _add_security(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("security")
    group.add_argument("--api-keys-file", type=Path, metavar="FILE",
                       help="a key a line; read again when it changes, and on SIGHUP")  # fmt: skip
    group.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN",
                       help="web origin whose pages may call (again for more; * for all)",
                       )  # fmt: skip
    group.add_argument("--tls-certificate", type=Path, metavar="FILE", help="PEM, with --tls-key")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model-name", metavar="NAME",
                       help="what clients call it (default: the folder's name; of a pack: mirror, "
                       "so that French is mirror-fr)")  # fmt: skip
    group.add_argument("--lang", action="append", default=[], metavar="NAME",
                       help="bundle of the pack to serve (again for more; default: all)",
                       )  # fmt: skip
    group.add_argument("--variant", metavar="NAME", help="graph of the bundle")
    group.add_argument("--providers", choices=["auto", "cpu", "cuda", "tensorrt"],
                       default="auto")  # fmt: skip
    group.add_argument("--allow-fallback", action="store_true",
                       help="run on the CPU where the provider asked for cannot be had",
                       )  # fmt: skip
    group.add_argument("--threads", type=int, metavar="N",
                       help="for one run (default: all, divided between the workers)",
                       )  # fmt: skip
    group.add_argument("--spinning", choices=get_args(Spinning), default=None)
    group.add_argument("--reload-interval", type=float, metavar="SECONDS",
                       help="look so often whether the bundle was replaced, and load it again "
                       "without a pause (default: on SIGHUP alone)")  # fmt: skip
    add_hub_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    _check_choices(arguments)
    from mirror_rt.server import ListenConfig, ServerConfig
    from mirror_rt.server.monitoring.logs import configure_logging
    from mirror_rt.server.process.main import check, serve

    if not arguments.source:
        raise ConfigError(f"no model: name a bundle or a pack, or set {_PREFIX}SOURCE")
    keys = os.environ.get(f"{_PREFIX}API_KEYS", "")
    config = ServerConfig(
        model_name=arguments.model_name,
        languages=tuple(arguments.lang),
        max_items=arguments.max_items,
        max_body_bytes=arguments.max_body_bytes,
        max_waiting_texts=arguments.max_waiting_texts,
        max_wait=arguments.max_wait,
        token_budget=arguments.token_budget,
        on_too_long=arguments.on_too_long,
        timeout=arguments.timeout,
        body_timeout=arguments.body_timeout,
        api_keys=tuple(key.strip() for key in keys.split(",") if key.strip()),
        api_keys_file=arguments.api_keys_file,
        cors_origins=tuple(arguments.cors_origin),
        variant=arguments.variant,
        revision=arguments.revision,
        offline=arguments.offline,
        providers=arguments.providers,
        allow_fallback=arguments.allow_fallback,
        threads=arguments.threads,
        spinning=arguments.spinning,
        reload_interval=arguments.reload_interval,
    )
    listen = ListenConfig(
        host=arguments.host,
        port=arguments.port,
        tls_certificate=arguments.tls_certificate,
        tls_key=arguments.tls_key,
        keep_alive=arguments.keep_alive,
        header_timeout=arguments.header_timeout,
        drain=arguments.drain,
        workers=arguments.workers,
        log_level=arguments.log_level,
        log_format=arguments.log_format,
    )
    configure_logging(level=arguments.log_level, as_json=arguments.log_format == "json")
    if arguments.check:
        print(f"could serve {check(arguments.source, config, listen)}")
        return
    serve(arguments.source, config, listen)


def _take_environment(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Make the variable of each option its default; argparse converts a default that is text."""
    for action in parser._actions:
        text = environment.get(_variable(action.dest))
        if text is None or action.dest == "help":
            continue
        if isinstance(action.default, bool):
            action.default = _truth(_variable(action.dest), text)
        elif isinstance(action.default, list):
            action.default = [part.strip() for part in text.split(",") if part.strip()]
        else:
            action.default = text
    parser.set_defaults(_choices={a.dest: a.choices for a in parser._actions if a.choices})


def _check_choices(arguments: argparse.Namespace) -> None:
    """Argparse does not look whether a default is among the choices."""
    for name, choices in arguments._choices.items():
        value = getattr(arguments, name)
        if value is not None and value not in choices:
            raise ConfigError(f"{_variable(name)} must be one of {list(choices)}, got {value!r}")


def _truth(name: str, text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ConfigError(f"{name} must be true or false, got {text!r}")
    return known[text.lower()]


def _variable(dest: str) -> str:
    return _PREFIX + dest.upper()
