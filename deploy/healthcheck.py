"""Ask the server of a container whether it is alive, where its own options say that it listens.

`python healthcheck.py [serve OPTIONS...]`; without arguments those of the first process.
"""

from __future__ import annotations

import ssl
import sys
import urllib.request
from pathlib import Path

from mirror_rt.cli.parsing.invocation import add_options
from mirror_rt.cli.parsing.parser import Parser
from mirror_rt.cli.serve import Serve
from mirror_rt.server import ListenConfig


def listening(words: list[str]) -> ListenConfig:
    """Return how a command listens, with the variables and the file that it reads."""
    parser = Parser()
    add_options(parser, Serve)
    return Serve.of(parser.parse_args(words[words.index("serve") + 1 :])).listen


def main() -> None:
    """End with 0 if the server answers, with an error if not."""
    words = sys.argv[1:] or Path("/proc/1/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
    listen = listening(words)
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen.host, listen.host)
    scheme = "http" if listen.tls_certificate is None else "https"
    context = ssl._create_unverified_context() if scheme == "https" else None  # it asks itself
    url = f"{scheme}://{host}:{listen.port}/health"
    urllib.request.urlopen(url, timeout=4, context=context).close()


if __name__ == "__main__":
    main()
