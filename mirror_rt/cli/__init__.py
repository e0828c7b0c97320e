"""The command line, `mirror-rt`."""

from mirror_rt.cli.main import main

__all__ = ["main"]
