import pytest

from step_encoder import StepEncoder


@pytest.fixture
def encoder():
    encoder = StepEncoder()
    yield encoder
    encoder.free()


@pytest.fixture
def busy(encoder, scheduler):
    """The future of a text that occupies the device until `step`."""
    future = scheduler.submit("device", normalize_embeddings=False)
    assert encoder.began.acquire(timeout=60)
    return future
