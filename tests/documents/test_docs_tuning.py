"""Every command in the documents on tuning is run: beside `test_docs.py`, at the same time."""

import pytest

from documents import TUNING, WITH_BLOCKS, run_blocks, sharing

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def shared(tmp_path_factory, default_model):
    return sharing(tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("document", TUNING)
def test_blocks_run(document, tmp_path, shared, commands):
    assert document in WITH_BLOCKS
    run_blocks(document, tmp_path, shared, commands)
