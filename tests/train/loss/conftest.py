"""The CUDA kernels of the loss, built for the host."""

import importlib.util
import math

import pytest
import torch

GUARD = 256  # bytes before and after every workspace and result


@pytest.fixture(scope="session")
def build(pytestconfig):
    folder = pytestconfig.rootpath / "tests" / "support" / "compiled" / "cuda_emulation"
    spec = importlib.util.spec_from_file_location("cuda_emulation_build", folder / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cache = pytestconfig.rootpath / "build" / "cuda_emulation"
    return lambda architecture=900: module.build("g++", cache, architecture=architecture)


@pytest.fixture(scope="session")
def emulation(build):
    return build()


@pytest.fixture
def guarded(monkeypatch):
    """What torch.empty and empty_like give is NaN, and nothing may write beside it."""
    empty, buffers = torch.empty, []

    def allocate(*shape, dtype=torch.float32, device=None):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        size = math.prod(shape) * dtype.itemsize
        buffer = empty(size + 2 * GUARD, dtype=torch.uint8).fill_(0xFF)
        buffers.append(buffer)
        return buffer[GUARD : GUARD + size].view(dtype).view(shape)

    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch, "empty_like", lambda z: allocate(z.shape, dtype=z.dtype))
    yield
    monkeypatch.undo()
    for buffer in buffers:
        assert (buffer[:GUARD] == 0xFF).all()
        assert (buffer[-GUARD:] == 0xFF).all()


@pytest.fixture(params=["mma", "tma"])
def core(request, monkeypatch):
    monkeypatch.setenv("MIRROR_RT_CUDA_CORE", request.param)
