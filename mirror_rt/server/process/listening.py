"""Bind and check the address that a server listens at, before anything is loaded."""

from __future__ import annotations

import errno
import socket
import ssl

from mirror_rt.errors import ConfigError
from mirror_rt.server.config import ListenConfig


def url_of(listener: socket.socket, listen: ListenConfig) -> str:
    """Return the address as a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if listen.tls_certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def bind(listen: ListenConfig) -> socket.socket:
    """Bind the address, without listening at it yet.

    Raises:
        ConfigError: the address is not available.
    """
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
        what = "it is taken: stop what listens there or choose another --port"
        reason = what if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigError(f"cannot listen at {listen.host} port {listen.port}: {reason}") from error
    listener.set_inheritable(True)
    return listener


def check_tls(listen: ListenConfig) -> None:
    """Raise ConfigError if the TLS files cannot be used."""
    if listen.tls_certificate is None or listen.tls_key is None:
        return
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(listen.tls_certificate, listen.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS: {listen.tls_certificate} and {listen.tls_key} cannot be used: {error}"
        ) from error
