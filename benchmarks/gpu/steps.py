"""Define the stages of benchmarks/gpu.sh: what runs on a machine with an NVIDIA GPU, and in order.

The answers that matter most come first: whether the fast core is right, how fast it is, a million
rows, why it is as fast as that. A stage fits into ten minutes, and all of them, with a start of the
machine and the transfer of the boxes, into 28 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator

from encode.setup import fingerprint
from gpu.run import Stage, Step
from loss.cores import CORES

BENCHMARKS = "benchmarks"
KERNEL_TESTS = "tests/train/loss/test_cuda_device.py"
TRAINING_TESTS = (
    "tests/train/training/test_gradient_caching.py",
    "tests/train/training/test_tune.py",
)
ENCODER_TESTS = ("tests/inference/test_devices.py", "tests/export/test_variants.py")
# The graphs for which onnxruntime prints its attention kernels.
ATTENTION = ("fp16-cuda", "fp16", "fp16-cuda-captured", "fp16-captured")
# Seconds to start a machine and to transfer boxes and reports, in seven calls.
CARRYING = 230
FASTEST = CORES[-1]
# Only our kernels are checked; those of others (cuBLAS, torch) would take most of the time.
SANITIZER = ("compute-sanitizer", "--error-exitcode", "1", "--kernel-name", "kns=mirror_train")


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
        done = subprocess.run(describe, capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unknown"
    return "unknown"


def make_stages(arguments: argparse.Namespace) -> dict[int, Stage]:
    steps = Steps(arguments)
    return {
        1: Stage("the fast core of the loss: right, and how fast", 500, list(steps.loss())),
        2: Stage("the loss: sanitizer, rivals, training", 270, list(steps.loss_in_depth())),
        3: Stage("packages, models, bundles", 230, list(steps.models())),
        4: Stage("the encoder", 450, list(steps.encoder())),
    }


class Steps:
    """Makes the steps of all stages."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.a = arguments
        self.work = arguments.work
        self.python = str(self.work / "env" / "bin" / "python")
        self.on_card = arguments.device == "cuda"

    def script(self, name: str, *words: object) -> list[str]:
        """Return the command for a script of this folder, in the environment with this project."""
        return [self.python, f"{BENCHMARKS}/{name}", *map(str, words)]

    def machine_script(self, name: str, *words: object) -> list[str]:
        """Return the same with the machine's Python, for use before there is an environment."""
        return [sys.executable, f"{BENCHMARKS}/{name}", *map(str, words)]

    def install(self, *words: object) -> list[str]:
        where = (self.a.parts, self.work, "--device", self.a.device)
        return self.machine_script("gpu/install.py", *words, *where)

    def infonce(self, *words: object) -> list[str]:
        return self.script(
            "loss/compare.py", "--device", self.a.device, "--json", "{result}", *words
        )

    def sizes(self, rows: str, dims: str) -> list[str]:
        rows, dims = (rows, dims) if self.on_card else ("256", "64")
        return ["--rows", *rows.split(), "--dims", *dims.split()]

    def loss(self) -> Iterator[Step]:
        yield Step("machine", self.machine_script("gpu/machine.py", "--json", "{result}"), 30)
        seconds = 160 * self.a.patience
        yield Step("build", self.install("build", "--seconds", seconds), 210)
        if self.on_card:
            check = [self.python, "-P", "-m", "mirror_train.loss.cuda_check", "0"]
            yield Step("agrees", check, 60, needs=["build"])
        yield self.tests_of(FASTEST)
        ours = ["--only", "mirror_rt", f"mirror_rt, core {FASTEST}"]
        speed = self.infonce(*ours, *self.sizes("65536", "768 384"), "--cell-seconds", "3")
        yield Step("speed", speed, 90, needs=["build"])
        million = self.infonce(*ours[:2], *self.sizes("1048576", "768"), "--repeats", "1")
        yield Step("million-rows", million, 90, needs=["build"])
        yield self.counters(FASTEST)
        yield self.sanitizer("memcheck", FASTEST)

    def loss_in_depth(self) -> Iterator[Step]:
        profile = self.script("gpu/loss_profile.py", "--json", "{result}")
        yield Step("host-and-kernels", profile, 60, needs=["build"])
        for core in CORES[:-1]:
            yield self.tests_of(core)
        ours = ["mirror_rt", *(f"mirror_rt, core {core}" for core in CORES)]
        speed = self.infonce("--only", *ours, *self.sizes("8192 65536", "384 768"))
        yield Step("cores", [*speed, "--cell-seconds", "2"], 90, needs=["build"])
        for tool in ("synccheck", "racecheck"):
            # racecheck does not know the asynchronous reads of the fast core.
            for core in CORES[::-1] if tool == "synccheck" else CORES[:1]:
                yield self.sanitizer(tool, core)
        rivals = self.infonce(*self.sizes("400 8192 65536", "768"), "--cell-seconds", "3")
        yield Step("rivals", [*rivals, "--max-seconds", "3"], 150, needs=["build"])
        tests = self.script("gpu/device_tests.py", "--json", "{result}", *TRAINING_TESTS)
        yield Step("tests-training", tests, 90, needs=["build"])
        for core in CORES[:-1]:
            yield self.sanitizer("memcheck", core)
            yield self.counters(core)

    def tests_of(self, core: str) -> Step:
        tests = self.script("gpu/device_tests.py", "--json", "{result}", KERNEL_TESTS)
        return Step(f"tests-{core}", tests, 120, {"MIRROR_RT_CUDA_CORE": core}, needs=["build"])

    def sanitizer(self, tool: str, core: str) -> Step:
        # Both dtypes and temperatures have kernels of their own.
        passes = self.one_pass(core, 600, 192, "float32", "bfloat16")
        check = [*SANITIZER, "--tool", tool, *passes, "--temperatures", "0.04", "0.01"]
        # Every tensor gets an allocation of its own, so that accesses past its end show.
        alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        return Step(f"{tool}-{core}", check, 80, alone, needs=["build"])

    def counters(self, core: str) -> Step:
        return Step(f"counters-{core}", [
            *("ncu", "--clock-control", "none", "--kernel-name-base", "mangled"),
            *("--kernel-name", "regex:mirror_train", "--set", "basic", "--launch-skip", "8"),
            *("--launch-count", "10", *self.one_pass(core, 8192, 768, "bfloat16")),
        ], 60, needs=["build"])  # fmt: skip

    def one_pass(self, core: str, rows: int, dim: int, *dtypes: str) -> list[str]:
        size = ["--rows", str(rows), "--dim", str(dim), "--dtype", *dtypes]
        name = f"mirror_rt, core {core}"
        return self.script("loss/contenders.py", name, "--device", "cuda", *size)

    def models(self) -> Iterator[Step]:
        for name in ("env", "rival"):
            install = self.install("environment", name)
            yield Step(f"packages-{name}", install, 120, needs=["build"])
        models = self.script("gpu/model.py", self.a.parts, self.work / "models")
        yield Step("models", models, 120, needs=["packages-env"])
        for name in ("base", "minilm"):
            bundle = [self.work / "models" / name, "--out", self.work / "bundles" / name]
            kinds = ["--precision", "fp32,fp16", "--target", "cpu,cuda", "--overwrite"]
            yield self.export(f"export-{name}", [*bundle, *kinds], 180)
        # A bundle of its own: on a card the graph is compared with PyTorch, and may be refused.
        bundle = [self.work / "models" / "minilm", "--out", self.work / "bundles" / "bf16"]
        kinds = ["--precision", "bf16", "--target", "cuda", "--overwrite"]
        yield self.export("export-bf16", [*bundle, *kinds], 90)

    def export(self, name: str, words: list[object], seconds: float) -> Step:
        command = [self.python, "-m", "mirror_rt.cli", "export", *map(str, words)]
        offline = {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
        return Step(name, command, seconds, offline, needs=["models"])

    def encoder(self) -> Iterator[Step]:
        command = [self.python, "-m", "mirror_rt.cli"]
        safe = {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
        bundle = str(self.work / "bundles" / "minilm")
        doctor = [*command, "doctor", "--model", bundle]
        yield Step("doctor", doctor, 60, safe, needs=["export-minilm"])
        # The model of base size is the measure: with MiniLM tokenizers take longer than the card.
        yield Step("encode-base", self.encode("base", 130), 150, needs=["export-base"])
        for name in ATTENTION:
            variant, _, captured = name.partition("-captured")
            graphs = ["--cuda-graphs"] if captured and self.on_card else []
            words = (bundle, variant, "--device", self.a.device, *graphs, "--json", "{result}")
            encode = self.script("gpu/attention.py", *words)
            offline = {"HF_HUB_OFFLINE": "1"}  # a script needs its own folder on the path
            yield Step(f"attention-{name}", encode, 90, offline, needs=["export-minilm"])
        tests = self.script("gpu/device_tests.py", "--json", "{result}", *ENCODER_TESTS)
        yield Step("tests-encoder", tests, 100, needs=["packages-env"])
        yield Step("encode-minilm", self.encode("minilm", 90), 110, needs=["export-minilm"])
        base = str(self.work / "bundles" / "base")
        seconds = 45 if self.on_card else 15
        soak = ["--device", self.a.device, "--seconds", seconds, "--json", "{result}"]
        yield Step("soak", self.script("gpu/soak.py", base, *soak), 90, needs=["export-base"])

    def encode(self, name: str, seconds: float) -> list[str]:
        models = self.work / "models"
        few = ["--seconds", seconds] if self.on_card else ["--texts", 28, "--seconds", 20]
        return self.script(
            "gpu/encoder.py", self.work / "bundles" / name, "--model", models / name,
            "--o4", models / f"{name}-o4", "--rival-python", self.work / "rival/bin/python",
            "--device", self.a.device, "--json", "{result}", *few,
        )  # fmt: skip
