"""Run `mirror-rt serve`."""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from mirror_rt.cli.common import ModelOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import (
    Group,
    Help,
    build,
    from_arguments,
    from_environment,
    from_file,
    unknown_variables,
)
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.server.config import ListenConfig, ServerConfig

logger = logging.getLogger("mirror_rt.server")
_PREFIX = "MIRROR_RT_SERVE_"


@dataclass(frozen=True, kw_only=True)
class Serve(Invocation):
    """Serve bundles, and the languages of packs, until SIGTERM or Ctrl-C.

    /docs describes the paths. Every option is also an environment variable
    (MIRROR_RT_SERVE_PORT=8080 for --port 8080, MIRROR_RT_SERVE_SOURCE for the bundle; lists with
    commas) and a key of the file that --config names (port = 8080). A flag goes before a variable,
    and that before the file. API keys have no flag, which others could see:
    MIRROR_RT_SERVE_API_KEYS, api_keys in the file, or a file of their own.

    Examples:
        mirror-rt serve all-MiniLM-L6-v2
        mirror-rt serve bundle
        mirror-rt serve small large pack --memory-limit 2e9
        mirror-rt serve pack --host 0.0.0.0 --port 8080 --api-keys-file keys.txt
        mirror-rt serve bundle --providers cuda --devices all --cuda-graphs
        mirror-rt serve --config serve.toml
        curl localhost:8080/v1/embeddings -d '{"input": "one text"}'
    """

    source: Annotated[
        tuple[str, ...],
        Help("folders or hub names of bundles and packs; the first has the default model",
             "BUNDLE|PACK", word=True, flag="--model"),
    ] = ()  # fmt: skip
    config: Annotated[
        Path | None,
        Help(f"options, by the names of their flags (default: {_PREFIX}CONFIG)", "FILE.toml"),
    ] = None
    check: Annotated[
        bool,
        Help("do all of the start but listen, run each model once, and end: with 0, or with an "
             "error"),
    ] = False  # fmt: skip
    listen: Annotated[ListenConfig, Group("listening")]
    server: Annotated[ServerConfig, Group("serving", leave_out=("api_keys",))]
    load: ModelOptions

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Take the options from flags, then from the environment, then from a file."""
        sources = [from_arguments(arguments), from_environment(os.environ, _PREFIX)]
        if path := arguments.config or os.environ.get(f"{_PREFIX}CONFIG"):
            sources.append(from_file(Path(path), cls, ListenConfig, ServerConfig, LoadOptions))
        return build(cls, *sources)

    def run(self) -> None:
        if not self.source:
            raise ConfigError(f"no model: name a bundle or a pack, or set {_PREFIX}SOURCE")
        from mirror_rt.server import check, serve
        from mirror_rt.server.monitoring.logs import configure_logging

        listen = self.listen
        configure_logging(level=listen.log_level, as_json=listen.log_format == "json")
        for variable in unknown_variables(
            os.environ, _PREFIX, type(self), ListenConfig, ServerConfig, LoadOptions
        ):
            logger.warning("no option of `mirror-rt serve` is called %s", variable)
        if self.check:
            print(f"could serve {check(self.source, self.server, listen)}")
            return
        serve(self.source, self.server, listen)
