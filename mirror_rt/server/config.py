"""What the server is told, checked once."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from mirror_rt.encoding.options import OnTooLong
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import Spinning
from mirror_rt.inference.providers import Providers

__all__ = ["ListenConfig", "ServerConfig"]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How models are served; the options of `Encoder.load` are among them.

    Attributes:
        model_name: what clients call the model; None for the folder's own name. Of a pack, what
            comes before the name of a bundle: `mirror` (so `mirror-fr`) unless given.
        languages: names of the bundles of a pack to serve; empty for all.
        max_items: most texts of one request.
        max_body_bytes: most bytes of one request.
        max_waiting_texts: most texts of all requests that are not answered yet.
        max_wait: seconds; where what waits would take longer, a request is refused.
        token_budget: most padded tokens of a run.
        on_too_long: what becomes of a text of too many tokens, unless the request says.
        timeout: seconds until a request is given up, unless it gives fewer itself.
        body_timeout: seconds in which a request must be here whole.
        api_keys: that are accepted; with none of these and no file, none is needed.
        api_keys_file: a key a line; read again when it changes.
        reload_interval: seconds between two looks at the manifest: where it has changed, the
            models are loaded again; None for on SIGHUP alone.
        cors_origins: web origins whose pages may call; `*` for all.
        variant, revision, offline, verify, providers, allow_fallback, threads, spinning: of
            `Encoder.load`.

    Raises:
        ConfigError: a limit is not above 0, or a choice is unknown.
    """

    model_name: str | None = None
    languages: tuple[str, ...] = ()
    max_items: int = 2048
    max_body_bytes: int = 16 << 20
    max_waiting_texts: int = 8192
    max_wait: float = 1.0
    token_budget: int = 2048
    on_too_long: OnTooLong = "error"
    timeout: float = 60.0
    body_timeout: float = 30.0
    api_keys: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    reload_interval: float | None = None
    cors_origins: tuple[str, ...] = ()
    variant: str | None = None
    revision: str | None = None
    offline: bool = False
    verify: bool = True
    providers: Providers = "auto"
    allow_fallback: bool = False
    threads: int | None = None
    spinning: Spinning | None = None

    def __post_init__(self) -> None:
        _above_zero(self, "max_items", "max_body_bytes", "max_waiting_texts", "max_wait",
                    "token_budget", "timeout", "body_timeout")  # fmt: skip
        if self.reload_interval is not None:
            _above_zero(self, "reload_interval")
        if self.on_too_long not in get_args(OnTooLong):
            raise ConfigError(
                f"on_too_long must be one of {get_args(OnTooLong)}, got {self.on_too_long!r}"
            )
        if self.max_waiting_texts < self.max_items:
            raise ConfigError(
                f"max_waiting_texts {self.max_waiting_texts} is less than max_items "
                f"{self.max_items}, so that no such request could ever be accepted"
            )


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where and how connections are taken.

    Attributes:
        host: address or name to listen at.
        port: 0 for any that is free.
        tls_certificate, tls_key: PEM files, both or neither.
        keep_alive: seconds until a connection without requests is closed.
        header_timeout: seconds in which the head of a request must be here.
        max_header_bytes: most bytes of it.
        drain: seconds that requests have to finish after SIGTERM.
        workers: processes that take connections.
        log_level, log_format: of their logs (`json` or `text`).

    Raises:
        ConfigError: a value cannot be used, or one of the TLS files is missing.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    keep_alive: int = 75
    header_timeout: float = 10.0
    max_header_bytes: int = 32 << 10
    drain: int = 30
    workers: int = 1
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be in 0 .. 65535, got {self.port}")
        _above_zero(self, "keep_alive", "header_timeout", "max_header_bytes", "drain", "workers")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both a certificate and a key: one of them is not given")
        if self.workers > 1 and os.name != "posix":
            raise ConfigError(f"workers must be 1 on this system, got {self.workers}")


def _above_zero(config: ServerConfig | ListenConfig, *names: str) -> None:
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise ConfigError(f"{name} must be above 0, got {getattr(config, name)}")
