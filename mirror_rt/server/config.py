"""Hold the configuration of the server, which is checked when it is made."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from mirror_rt.errors import ConfigError, Setting
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import OnTooLong
from mirror_rt.schema import AboveZero, Rule, check_rules

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "text"]
UnknownFields = Literal["refuse", "ignore"]
_Port = Rule("in 0 .. 65535", lambda port: 0 <= port <= 65535)
_Pause = Rule("at least 0", lambda seconds: 0 <= seconds < math.inf)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Say how models are served. `mirror-rt serve` has an option for every field.

    Attributes:
        model_name: the name of the model for clients; by default that of its folder or repository.
            Of a pack, the prefix of the names of its bundles: `mirror` (so that French is
            `mirror-fr`) unless given.
        model_aliases: other names that clients may call the model by (of a pack, its default), for
            those that always send one, such as `text-embedding-3-small`; `*` is any. Of several,
            `NAME=MODEL` is another name of one of them, and `NAME=SOURCE` is the name of a bundle's
            model, or the prefix of the names of a pack.
        languages: names or languages of the bundles of a pack to serve; all unless given.
        memory_limit: most bytes of the models that are loaded at a time, as `LanguagePack.load`
            counts them; with it, models are loaded when a request needs them, and the least
            recently used leave. By default all are loaded, and stay. Each worker has such a limit.
        fallback: of a pack, the language whose model answers for languages that it lacks; by
            default that of the pack, if it declares one. Without one, such a language is refused.
        max_items: most texts of one request.
        max_body_bytes: most bytes of one request.
        max_waiting_texts: most texts that may wait; requests beyond are refused (429). The texts of
            large requests shut out no small one.
        max_wait: seconds; where the work before a request would take longer, it is refused (429).
        token_budget: most padded tokens of a run.
        unknown_fields: the answer to a request with a field that its protocol does not have: it
            is refused (`refuse`, 422), or the field has no effect (`ignore`).
        on_too_long: the treatment of a text of more tokens than the model takes, unless the request
            says: it is refused (`error`, 413), cut at its end (`truncate`) or beginning
            (`truncate-left`), or encoded in chunks whose vectors are averaged (`chunk`). By default
            the protocol decides: that of text-embeddings-inference cuts, others refuse.
        timeout: seconds until a request is given up, unless it gives fewer itself
            (`X-Request-Timeout`).
        body_timeout: seconds in which the body of a request must have arrived.
        api_keys: keys that are accepted; with none of these and no file, none is needed.
        api_keys_file: a file with a key a line; it is read again when it changes, and on SIGHUP.
        reload_interval: seconds between two looks at the manifest: where it has changed, the
            models are loaded again without a pause; by default a look on SIGHUP alone.
        cors_origins: web origins whose pages may call; `*` for all.
        load: how the model is loaded, or each of the bundles of a pack.

    Raises:
        ConfigError: a limit is not above 0, a choice is unknown, or `reload_interval` is given
            with CUDA graphs, which are captured while nothing else uses the card.
    """

    model_name: str | None = None
    model_aliases: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    fallback: str | None = None
    memory_limit: float | None = None
    max_items: Annotated[int, AboveZero] = 2048
    max_body_bytes: Annotated[int, AboveZero] = 16 << 20
    max_waiting_texts: Annotated[int, AboveZero] = 8192
    max_wait: Annotated[float, AboveZero] = 1.0
    token_budget: Annotated[int, AboveZero] = 2048
    unknown_fields: UnknownFields = "refuse"
    on_too_long: OnTooLong | None = None
    timeout: Annotated[float, AboveZero] = 60.0
    body_timeout: Annotated[float, AboveZero] = 30.0
    api_keys: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    reload_interval: Annotated[float | None, AboveZero] = None
    cors_origins: tuple[str, ...] = ()
    load: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        check_rules(self)
        if self.reload_interval is not None and self.load.cuda_graphs:
            raise ConfigError(
                Setting("reload_interval"),
                " and CUDA graphs exclude each other: they are captured while "
                "nothing else uses the card, so restart the server for another model",
            )
        if self.max_waiting_texts < self.max_items:
            raise ConfigError(
                Setting("max_waiting_texts"),
                f" {self.max_waiting_texts} is less than ",
                Setting("max_items"),
                f" {self.max_items}, so that no such request could ever be accepted",
            )


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Say where and how connections are taken. `mirror-rt serve` has an option for every field.

    Attributes:
        host: address or name to listen at.
        port: port to listen at; 0 for any that is free.
        tls_certificate: PEM file of the certificate, with the file of its key; both are read again
            when they change, and on SIGHUP.
        tls_key: PEM file of the key, with the file of the certificate.
        keep_alive: seconds until a connection without requests is closed.
        header_timeout: seconds in which the head of a request must have arrived.
        answer_timeout: seconds within which a client must take 64 KiB more of its answer, or all of
            it; otherwise the connection is ended.
        max_header_bytes: most bytes of the head of a request.
        max_connections: most connections of a process; one more is answered with 503. By default as
            many as half of the file descriptors that it may open.
        lame_duck: seconds after SIGTERM in which it is not ready but takes requests, so that
            balancers notice before it listens no more; a second SIGTERM ends them.
        drain: seconds that requests have to finish after SIGTERM.
        workers: processes that share the port and the weights; one that dies is started again.
        log_level: the least severe messages that are logged.
        log_format: a line of text for each message, or a JSON object.

    Raises:
        ConfigError: a value cannot be used, or one of the TLS files is missing.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, _Port] = 8080
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    keep_alive: Annotated[int, AboveZero] = 75
    header_timeout: Annotated[float, AboveZero] = 10.0
    answer_timeout: Annotated[float, AboveZero] = 30.0
    max_header_bytes: Annotated[int, AboveZero] = 32 << 10
    max_connections: Annotated[int | None, AboveZero] = None
    lame_duck: Annotated[float, _Pause] = 0.0
    drain: Annotated[int, AboveZero] = 30
    workers: Annotated[int, AboveZero] = 1
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        check_rules(self)
        if (self.tls_certificate is None) != (self.tls_key is None):
            lacks = "tls_key" if self.tls_key is None else "tls_certificate"
            raise ConfigError("TLS needs both a certificate and its key: give ", Setting(lacks))
        if self.workers > 1 and sys.platform == "win32":
            only = "1 on Windows, where no two processes share a port: start a server for each port"
            raise ConfigError(field="workers", expected=only, value=self.workers)
