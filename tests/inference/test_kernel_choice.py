"""The kernels of a precision are chosen by their times, which the tests give."""

import ctypes
import json
import platform
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from mirror_rt import Encoder, _core
from mirror_rt.inference.native import kernel_choice
from mirror_rt.inference.native.kernel_choice import (
    Kernels,
    as_declared,
    candidates,
    kernels_for,
    measure,
    quickest,
    read_or_measure,
)

SETS = ["portable", "avx2", "avx512", "avx512_bf16"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def set_times(monkeypatch, cache):
    """set_times(seconds) lets seconds(kernels) be what each of the kernels takes."""

    def set_times(seconds):
        shutil.rmtree(cache, ignore_errors=True)
        monkeypatch.setattr(kernel_choice, "measure", lambda which: [*map(seconds, which)])

    return set_times


def test_the_most_capable_kernels_are_taken_unless_others_are_quicker():
    last = Kernels("int8", "avx512_bf16")
    for seconds, chosen in [
        ([1.0, 1.0, 1.0], last),
        ([1.0, 1.05, 1.09], last),  # within what chance does
        ([1.0, 1.0, 1.2], Kernels("int8", "avx512")),
        ([1.0, 2.0, 3.0], Kernels("int8", "avx2")),
    ]:
        assert quickest(dict(zip(candidates("int8", SETS), seconds, strict=True))) == chosen


def test_float32_may_stand_in_for_bfloat16_alone():
    assert candidates("fp32", SETS) == [Kernels("fp32", name) for name in SETS[1:]]
    both = candidates("bf16", SETS)
    assert [kernels.precision for kernels in both] == ["fp32"] * 3 + ["bf16"] * 3
    assert candidates("int8", ["portable"]) == [Kernels("int8", "portable")]


def test_times_are_kept_once_a_machine(cache, monkeypatch):
    calls = []

    def count(which):
        calls.append(which)
        return [float(number + 1) for number in range(len(which))]

    found = read_or_measure("bf16", SETS, cache, count)
    assert read_or_measure("bf16", SETS, cache, count) == found
    assert len(calls) == 1
    read_or_measure("bf16", SETS[:2], cache, count)  # other instructions, as in a container
    monkeypatch.setattr(kernel_choice, "processor_names", lambda: ["another"])
    read_or_measure("bf16", SETS, cache, count)
    assert len(calls) == 3
    assert len({*cache.glob("kernels/bf16-*.json")}) == 3


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"seconds": {}}', '{"seconds": null}', "[" * 100_000, "\0", None]
)
def test_a_damaged_file_is_written_again(cache, content):
    def known(which):
        return [2.0] * len(which)

    found = read_or_measure("int8", SETS, cache, known)
    (path,) = cache.glob("kernels/*.json")
    kept = path.read_text("utf-8")
    if content is None:
        value = json.loads(kept)
        value["seconds"][" ".join(next(iter(found)))] = float("nan")
        content = json.dumps(value)
    path.write_text(content, "utf-8")
    assert read_or_measure("int8", SETS, cache, known) == found
    assert path.read_text("utf-8") == kept


def test_of_processes_that_measure_at_once_the_first_decides_for_all(cache):
    first = []

    def meanwhile(which):
        first.append(read_or_measure("bf16", SETS, cache, lambda which: [1.0] * len(which)))
        return [2.0] * len(which)

    assert read_or_measure("bf16", SETS, cache, meanwhile) == first[0]
    assert len([*cache.glob("kernels/*")]) == 1


def test_a_cache_that_cannot_be_written_is_done_without(cache):
    cache.write_text("a file", "utf-8")
    found = read_or_measure("int8", SETS, cache, lambda which: [1.0] * len(which))
    assert quickest(found) == Kernels("int8", SETS[-1])


def test_nothing_is_kept_without_a_home(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(kernel_choice, "cache_folder", no_home)
    monkeypatch.setattr(kernel_choice, "measure", lambda which: [1.0] * len(which))
    assert kernels_for("int8") == Kernels("int8", _core.engine_instruction_sets()[-1])


def test_every_kernel_is_timed():
    for precision in ("fp32", "bf16", "int8"):
        which = candidates(precision, _core.engine_instruction_sets())
        assert all(0 < seconds < float("inf") for seconds in measure(which))


def test_slow_bfloat16_is_computed_in_float32(bundle, set_times, words):
    texts = [" ".join(words[i : i + 7]) for i in range(20)]
    set_times(lambda kernels: 1.0)
    exact = Encoder.load(bundle, providers="native").encode(texts)

    def load():
        encoder = Encoder.load(bundle, providers="native", variant="bf16")
        return encoder, encoder.pipeline.model.runner.instructions

    best = _core.engine_instruction_sets()[-1]
    set_times(lambda kernels: 1.0 if kernels.precision == "bf16" else 2.0)
    rounded, instructions = load()
    assert instructions == f"bf16 {best}"
    assert not np.array_equal(rounded.encode(texts), exact)
    set_times(lambda kernels: 2.0 if kernels.precision == "bf16" else 1.0)
    widened, instructions = load()
    assert instructions == f"fp32 {best}"
    assert widened.variant.precision == "bf16"
    np.testing.assert_array_equal(widened.encode(texts), exact)
    with as_declared():  # as an export measures the error of a precision
        assert kernels_for("bf16") == Kernels("bf16", best)
        np.testing.assert_array_equal(load()[0].encode(texts), rounded.encode(texts))


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="of Linux on x86-64"
)
def test_tiles_are_taken_where_they_are_granted_alone():
    found = "avx512_amx" in _core.engine_instruction_sets()
    flags = Path("/proc/cpuinfo").read_text("utf-8").partition("flags")[2].splitlines()[0].split()
    granted = ctypes.c_uint64()
    ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(granted))  # ARCH_GET_XCOMP_PERM
    has = {"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"} <= {*flags}
    assert found == (has and granted.value >> 18 & 1 == 1)
