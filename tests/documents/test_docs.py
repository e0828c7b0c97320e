"""Every command in the documents is run: here those that tune little."""

import pytest

from documents import FIRST_READ, TUNING, WITH_BLOCKS, run_blocks, sharing
from tiers import tiers

QUICK = [name for name in WITH_BLOCKS if name not in TUNING]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, default_model):
    return sharing(tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("document", tiers(QUICK, fast=FIRST_READ))
def test_blocks_run(document, tmp_path, shared, commands):
    # The commands of what is read first start as a user's do.
    run_blocks(document, tmp_path, shared, None if document == "README.md" else commands)
