"""Where the CUDA extension is called: the device and the stream, of a torch that has cards."""

import contextlib

import pytest
import torch

from mirror_train.loss import cuda_device
from mirror_train.loss.cuda_device import call_on_device


@pytest.fixture
def changes(monkeypatch):
    """Four cards, of which the first is current; the list of changes of torch's device."""
    current, changes = [0], []

    @contextlib.contextmanager
    def device(chosen):
        changes.append(chosen)
        current.append(chosen)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(cuda_device, "raw_stream", lambda index: 70 + index)
    monkeypatch.setattr(cuda_device, "settle_core", lambda module, index: None)
    return changes


@pytest.mark.parametrize(
    ("device", "called", "changed"),
    [(0, (0, "z", 70), []), (3, (3, "z", 73), [3]), (-1, (0, "z", 0), [])],
)
def test_torch_changes_its_device_only_where_it_differs(changes, device, called, changed):
    calls = []
    call_on_device(None, device, lambda *arguments: calls.append(arguments), "z")
    assert calls == [called]
    assert changes == changed
