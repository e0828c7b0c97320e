"""Commands for the documents' blocks."""

import pytest

from preloaded import preloaded


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """A folder with a `mirror-rt` that is quick to start."""
    with preloaded(tmp_path_factory.mktemp("preloaded")) as folder:
        yield folder
