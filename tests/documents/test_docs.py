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
    run_blocks(document, tmp_path, shared, commands)


@pytest.mark.full
def test_the_first_page_starts_each_command_as_a_user_does(tmp_path, shared):
    """In a process of its own, as examples/demo.sh does in every tier."""
    run_blocks("README.md", tmp_path, shared)
