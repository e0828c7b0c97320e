"""Define the stages of benchmarks/gpu.sh: what runs on a machine with an NVIDIA GPU, and in order.

The answers that matter most come first, for what does not fit into the time falls away from the
end. The first stage takes about 365 seconds on an H100, the second about 250.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from encode.setup import fingerprint
from gpu.runner import Stage, Step
from loss.cores import CORES, VARIABLE

BENCHMARKS = "benchmarks"
KERNEL_TESTS = "tests/train/loss/test_cuda_device.py"
CPU_TESTS = "tests/train/loss/test_infonce.py"
ENCODER_TESTS = ("tests/inference/test_devices.py", "tests/export/test_variants.py")
SLOW_TESTS = "compile or million"
# Compares with torch's float32. Tensor cores truncate, so it may fail on both cores alike: then the
# bound is at fault, and no verdict depends on it.
PRECISE_TESTS = "precise"
MOST_TESTS = f"not ({SLOW_TESTS} or {PRECISE_TESTS})"
FAST, SAFE = CORES[-1], CORES[0]
OURS = f"mirror_rt, core {FAST}"
SECONDS_IF_WRONG = 250
ERRORS = 86  # the exit status of the sanitizer where it found errors
# Only our kernels are checked; those of others (cuBLAS, torch) would take most of the time. torch
# asks the driver for functions that it may not have, which is no error of a kernel.
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no",
             "--error-exitcode", str(ERRORS), "--kernel-name", "kns=mirror_train")  # fmt: skip
COUNTERS = ("ncu", "--clock-control", "none", "--kernel-name-base", "function", "--kernel-name",
            "regex:tma_(logsumexp|weights|accumulate)_tiles", "--set", "basic",
            "--section", "ComputeWorkloadAnalysis", "--section", "WarpStateStats")  # fmt: skip
ENCODERS = (
    "mirror-rt fp16-cuda",
    "mirror-rt fp16-cuda, CUDA graphs",
    "sentence-transformers fp16",
    "sentence-transformers fp16, flash attention",
)


def about(arguments: argparse.Namespace) -> dict[str, str]:
    return {
        "date": arguments.started,
        "commit": commit(),
        "sources": fingerprint(),
        "device": arguments.device,
    }


def commit() -> str:
    """Return the name of the commit; where git or the history is missing, `sources` tells."""
    describe = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        done = subprocess.run(describe, capture_output=True, encoding="utf-8", check=False)
        return done.stdout.strip() or "unknown"
    return "unknown"


def make_stages(arguments: argparse.Namespace) -> dict[int, Stage]:
    steps = Steps(arguments)
    factor = arguments.patience
    loss, encoder = (
        [replace(step, limit=factor * step.limit) for step in found]
        for found in (steps.loss(), steps.encoder())
    )
    title = "the fast core of the loss: right, and how fast"
    judges = (f"tests-{FAST}", f"memcheck-{FAST}")
    return {
        1: Stage(title, loss, "agrees", judges, factor * SECONDS_IF_WRONG),
        2: Stage("the encoder", encoder, "doctor", ["tests-encoder"]),
    }


class Steps:
    """Makes the steps of all stages."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.a, self.work = arguments, arguments.work
        self.python = str(self.work / "env" / "bin" / "python")
        self.on_card = arguments.device == "cuda"
        self.device = ("--device", arguments.device)

    def script(self, name: str, *words: object) -> list[str]:
        """Return the command for a script of this folder, in the environment with this project."""
        return [self.python, f"{BENCHMARKS}/{name}", *map(str, words)]

    def machine_script(self, name: str, *words: object) -> list[str]:
        """Return the same with the machine's Python, for use before there is an environment."""
        return [sys.executable, f"{BENCHMARKS}/{name}", *map(str, words)]

    def install(self) -> Step:
        seconds = 140 * self.a.patience
        where = (self.a.parts, self.work, "--seconds", seconds, *self.device)
        return Step("install", self.machine_script("gpu/install.py", "product", *where), 150)

    def loss(self) -> Iterator[Step]:
        yield self.install()
        machine = self.machine_script("gpu/machine.py", *self.device, "--json", "{result}")
        yield Step("machine", machine, 60)
        each = ("--seconds", 10 * self.a.patience, "--json", "{result}")
        faults = self.script("gpu/faults.py", *self.device, *each)
        check = [self.python, "-P", "-m", "mirror_train.loss.cuda_check", "0"]
        # Without a card the other implementations stand in, compared with float64.
        yield Step("agrees", check if self.on_card else faults, 45, needs=["install"])
        yield self.tests(FAST, MOST_TESTS, f"tests-{FAST}", 90, "agrees")
        yield self.compare("speed", [OURS], "65536", "768 384", 60, "--cell-seconds", 3)
        once = ("--repeats", 1, "--no-products")
        yield self.compare("million-rows", [OURS], "1048576", "768", 60, *once)
        if self.on_card:
            panels = ("--core", FAST, "--panels", 66, 88, 132, "--json", "{result}")
            profile = self.script("gpu/loss_profile.py", *panels)
            yield Step("kernels", profile, 45, needs=["agrees"])
        # Compiling takes a CPU too long for a rehearsal.
        rivals = [OURS, "PyTorch", *(["torch.compile"] if self.on_card else [])]
        yield self.compare("rivals", rivals, "65536", "768", 90, "--cell-seconds", 5)
        if self.on_card:
            # One wave of the full size; before it 256 rows warm up, with the same three kernels.
            one = self.one_pass(FAST, 88 * 128, 768, "bfloat16")
            counters = [*COUNTERS, "--launch-skip", "3", "--launch-count", "3", *one]
            yield Step("counters", counters, 45, needs=["agrees"])
            yield Step("faults", faults, 60, needs=["install"], unless="agrees")
            yield self.memcheck(FAST)
            yield self.tests("", PRECISE_TESTS, "tests-precise", 40, "agrees")
            yield self.tests(FAST, SLOW_TESTS, "tests-slow", 90, "agrees")
        yield self.tests(SAFE, MOST_TESTS, f"tests-{SAFE}", 70, "install")

    def tests(self, core: str, chosen: str, name: str, limit: float, needs: str) -> Step:
        """Return the step of the chosen tests, with one core or, where none is named, with each."""
        file = KERNEL_TESTS if self.on_card else CPU_TESTS
        seconds = (30, 60)[chosen == SLOW_TESTS] * self.a.patience
        words = ("--json", "{result}", "--seconds", seconds, *self.device, file)
        command = self.script("gpu/device_tests.py", *words, "-k", chosen)
        return Step(name, command, limit, {VARIABLE: core} if core else {}, needs=[needs])

    def compare(
        self, name: str, only: list[str], rows: str, dims: str, limit: float, *words: object
    ) -> Step:
        if not self.on_card:
            rows, dims, only = "256", "64", [name.partition(",")[0] for name in only]
        size = ("--rows", *rows.split(), "--dims", *dims.split())
        where = ("loss/compare.py", *self.device, "--json", "{result}", "--only", *only)
        return Step(name, self.script(*where, *size, *words), limit, needs=["agrees"])

    def memcheck(self, core: str) -> Step:
        # Both dtypes and temperatures have kernels of their own.
        passes = self.one_pass(core, 600, 192, "float32", "bfloat16")
        check = [*SANITIZER, *passes, "--temperatures", "0.04", "0.01"]
        # Every tensor gets an allocation of its own, so that accesses past its end show.
        alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        name = f"memcheck-{core}"
        return Step(name, check, 70, alone, needs=["install"], wrong_status=ERRORS)

    def one_pass(self, core: str, rows: int, dim: int, *dtypes: str) -> list[str]:
        size = ["--rows", str(rows), "--dim", str(dim), "--dtype", *dtypes]
        name = f"mirror_rt, core {core}"
        return self.script("loss/contenders.py", name, "--device", "cuda", *size)

    def encoder(self) -> Iterator[Step]:
        yield self.install()
        ready = ["install"]
        if self.on_card:
            unpack = self.machine_script("gpu/install.py", "onnxruntime", self.a.parts, self.work)
            yield Step("onnxruntime", unpack, 60, needs=ready)
            ready = ["onnxruntime"]
        model, bundle = self.work / "models" / "base", self.work / "bundles" / "base"
        small = () if self.on_card else ("--layers", 1)
        yield Step("model", self.script("gpu/model.py", model, *small), 60, needs=ready)
        command = [self.python, "-P", "-m", "mirror_rt.cli"]
        kinds = [
            "--precision",
            "fp32,fp16",
            "--target",
            "cpu,cuda",
            "--pooling",
            "mean",
            "--overwrite",
        ]
        export = [*command, "export", str(model), "--out", str(bundle), *kinds]
        yield Step("export-base", export, 90, needs=["model"])
        doctor = [*command, "doctor", "--model", str(bundle)]
        yield Step("doctor", doctor, 40, needs=["export-base"])
        few = (
            ("--texts", 6000, "--seconds", 85) if self.on_card else ("--texts", 28, "--seconds", 20)
        )
        only = ENCODERS if self.on_card else ["mirror-rt fp16"]
        words = ("--model", model, *self.device, *few, "--json", "{result}", "--only", *only)
        encode = self.script("gpu/encoder.py", bundle, *words)
        yield Step("encode-base", encode, 100, needs=["doctor"])
        words = ("fp16-cuda" if self.on_card else "fp16", *self.device, "--json", "{result}")
        attention = self.script("gpu/attention.py", bundle, *words)
        yield Step("attention-fp16-cuda", attention, 40, needs=["doctor"])
        tests = ("--json", "{result}", "--seconds", 60 * self.a.patience, *self.device)
        command = self.script("gpu/device_tests.py", *tests, *ENCODER_TESTS, "-m", "gpu")
        if self.on_card:
            yield Step("tests-encoder", command, 80, needs=["doctor"])
        seconds = 45 if self.on_card else 15
        soak = (bundle, *self.device, "--seconds", seconds, "--json", "{result}")
        yield Step("soak", self.script("gpu/soak.py", *soak), 90, needs=["doctor"])
