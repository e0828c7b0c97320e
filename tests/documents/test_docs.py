"""Every command in the documents is run: here those that tune little."""

import pytest

from documents import TUNING, WITH_BLOCKS, run_blocks, sharing

FIRST_READ = "README.md"  # whose commands start as a user's do


@pytest.fixture(scope="module")
def shared(tmp_path_factory, default_model):
    return sharing(tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("document", [name for name in WITH_BLOCKS if name not in TUNING])
def test_blocks_run(document, tmp_path, shared, commands):
    run_blocks(document, tmp_path, shared, None if document == FIRST_READ else commands)
