"""Look up the version of this package, which takes as long as all other imports together."""

from importlib.metadata import version

__version__ = version("mirror-rt")
