"""Check the certificate of the server, and read it again when it is exchanged."""

from __future__ import annotations

import logging
import ssl

from mirror_rt.errors import ConfigError
from mirror_rt.io.limits import read_regular
from mirror_rt.server.config import ListenConfig
from mirror_rt.server.watching import WatchedFiles

logger = logging.getLogger("mirror_rt.server")

_MOST_BYTES = 1 << 20  # of a file with a certificate or a key


class Certificate(WatchedFiles):
    """The files of a certificate and its key; new connections use their current contents."""

    def __init__(self, listen: ListenConfig) -> None:
        super().__init__([file for file in (listen.tls_certificate, listen.tls_key) if file])
        self._listen = listen
        self.context: ssl.SSLContext | None = None
        """The context of new connections; None before the server listens."""

    def read_again(self) -> None:
        """Read the files; where one cannot be used or is not of the other, the old ones stay."""
        try:
            check_tls(self._listen)  # a pair that does not fit would spoil the one in use
            if self.context is not None:
                certificate, key = self._files
                self.context.load_cert_chain(certificate, key)
        except (ConfigError, OSError) as error:
            logger.error("the certificate stays as it was: %s", error)
        else:
            logger.info("the certificate was read again")


def check_tls(listen: ListenConfig) -> None:
    """Raise ConfigError if the TLS files cannot be used."""
    if listen.tls_certificate is None or listen.tls_key is None:
        return
    try:
        for file in (listen.tls_certificate, listen.tls_key):
            read_regular(file, _MOST_BYTES)  # opening a pipe would wait for ever
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(listen.tls_certificate, listen.tls_key)
    except OSError as error:
        raise ConfigError(
            f"TLS: {listen.tls_certificate} and {listen.tls_key} cannot be used: {error}"
        ) from error
