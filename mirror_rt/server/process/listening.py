"""Bind the address of a server, within the limit of file descriptors, and say that it listens."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys

from mirror_rt.errors import ConfigError
from mirror_rt.server.config import ListenConfig
from mirror_rt.system import open_files_limit

logger = logging.getLogger("mirror_rt.server")

_OTHERS = 32  # descriptors of a process for models, logs, pipes and the cache
_FEW = 1024  # fewer are warned of


def most_connections(listen: ListenConfig) -> int:
    """Return how many connections a process takes.

    As many more may wait for their refusal to be read, so each counts twice.
    """
    return listen.max_connections or max(1, (open_files_limit() - _OTHERS) // 2)


def check_descriptors(listen: ListenConfig) -> None:
    """Raise ConfigError if there are too few descriptors for `max_connections`; warn of few."""
    limit, most = open_files_limit(), most_connections(listen)
    if 2 * most + _OTHERS > limit:
        raise ConfigError(
            field="max_connections", value=most,
            expected=f"at most {max(0, (limit - _OTHERS) // 2)}, as this process may open {limit} "
            f"files: raise that limit (ulimit -n {2 * most + _OTHERS}, LimitNOFILE of systemd)",
        )  # fmt: skip
    if limit < _FEW:
        logger.warning("this process may open %d files, so it takes %d connections at a time: "
                       "raise that limit (ulimit -n)", limit, most)  # fmt: skip


def bind(listen: ListenConfig) -> socket.socket:
    """Bind the address, without listening at it yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen at {listen.host!r}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = error.strerror
        if error.errno == errno.EADDRINUSE:
            reason = "it is taken: stop the program that listens there or choose another --port"
        raise ConfigError(f"cannot listen at {listen.host} port {listen.port}: {reason}") from error
    listener.set_inheritable(True)
    return listener


def url_of(listener: socket.socket, listen: ListenConfig) -> str:
    """Return the address as a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if listen.tls_certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def say_listening() -> None:
    """Send READY=1 to the socket that $NOTIFY_SOCKET names, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if sys.platform != "win32" and address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect("\0" + address[1:] if address.startswith("@") else address)
            client.send(b"READY=1")
