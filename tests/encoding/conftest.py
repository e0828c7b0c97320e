"""What the tests of an encoder share."""

from collections.abc import Iterator

import pytest

from mirror_rt import Encoder


@pytest.fixture(scope="session")
def encoder(bundle) -> Iterator[Encoder]:
    """A tiny BERT in the engine, which gives a text the same bits in any batch."""
    with Encoder.load(bundle, providers="native", threads=1) as encoder:
        yield encoder
