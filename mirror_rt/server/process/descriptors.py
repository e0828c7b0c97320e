"""Take no more connections than there are file descriptors for."""

from __future__ import annotations

import logging

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
