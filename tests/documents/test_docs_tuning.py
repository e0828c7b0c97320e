"""Every command in the documents on tuning is run: beside `test_docs.py`, at the same time."""

import pytest

from documents import DOCUMENTS, TUNING, run_blocks, sharing


@pytest.fixture(scope="module")
def shared(tmp_path_factory, default_model):
    return sharing(tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("document", TUNING)
def test_blocks_run(document, tmp_path, shared):
    assert document in DOCUMENTS
    run_blocks(document, tmp_path, shared)
