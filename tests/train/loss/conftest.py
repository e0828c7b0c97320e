"""The CUDA kernels of the loss, built for the host."""

import importlib.util

import pytest


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
