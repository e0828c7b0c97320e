"""Install this project for benchmarks/gpu.sh, without a network, beside the machine's Python.

    python benchmarks/gpu/install.py product PARTS WORK [--device cpu] [--seconds 140]
    python benchmarks/gpu/install.py onnxruntime PARTS WORK
    python benchmarks/gpu/install.py about ARCHITECTURE

`product` takes the wheel of PARTS/1 if it was built from these sources, for this Python and for the
compute capability of this machine's GPU, and loads here; else it compiles. `onnxruntime` unpacks
PARTS/2, and fails if its CUDA provider does not start. `about` prints what parts.sh writes beside
a wheel.

Packages are unpacked into WORK/site-NAME. The environment, WORK/env, holds only links: to them, and
to everything else that the machine's own Python has, such as torch and its NVIDIA libraries. So
these lie beside onnxruntime-gpu, which looks for them there; the machine's onnxruntime is then not
linked, because the two overwrite each other's files. With --device cpu a machine without a GPU
counts as one of compute capability 9.0.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.setup import ROOT, fingerprint

ABOUT, PRODUCT = "about.json", "site-product"
# Importing them fails where a library or a symbol is missing.
_EXTENSIONS = {"cpu": "mirror_rt._core", "cuda": "mirror_rt._core, mirror_train._cuda"}
# Run where onnxruntime-gpu was unpacked: does its provider start?
_STARTS = """
import onnxruntime
from onnx import TensorProto, helper
onnxruntime.preload_dlls()
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "starts", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CUDAExecutionProvider"])
print(onnxruntime.__version__, session.get_providers())
raise SystemExit(session.get_providers()[0] != "CUDAExecutionProvider")
"""


def about(architecture: str) -> dict[str, str]:
    """Return the sources and the architecture that a wheel is for."""
    return {"sources": fingerprint(), "architecture": architecture}


def product(parts: Path, work: Path, device: str, seconds: float) -> None:
    capability = architecture(device)
    for why in obstacles(parts / "1", capability, work, device):
        print(f"the wheel that came with the parts does not fit: {why}: compiling", flush=True)
        build(capability, work, seconds)
        environment(work)
        if (failure := loading_failure(work, device)) is not None:
            sys.exit(f"what was compiled does not load: {failure}")


def obstacles(box: Path, capability: str, work: Path, device: str) -> Iterator[str]:
    """Install the wheel of a box; yield why it cannot be used, if it cannot."""
    wheels, expected, target = sorted(box.glob("*.whl")), about(capability), work / PRODUCT
    if not wheels or not (box / ABOUT).is_file():
        yield f"{box} has none"
        return
    if (found := json.loads((box / ABOUT).read_text(encoding="utf-8"))) != expected:
        yield f"it is of {found}, expected {expected}"
        return
    shutil.rmtree(target, ignore_errors=True)
    if not succeeds([*_pip(target), "--quiet", str(wheels[0])], os.environ, seconds=30):
        yield f"pip does not install {wheels[0].name}"
        return
    environment(work)
    if (failure := loading_failure(work, device)) is not None:
        yield failure
        return
    print(f"installed: {wheels[0].name}")


def build(capability: str, work: Path, seconds: float) -> None:
    target = work / PRODUCT
    shutil.rmtree(target, ignore_errors=True)
    command = [
        *(*_pip(target), "--verbose", "--no-build-isolation"),
        f"--config-settings=build-dir={work / 'build'}",
        "--config-settings=cmake.define.MIRROR_RT_CUDA=ON",
        f"--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES={capability}",
        str(ROOT),
    ]
    if not succeeds(command, os.environ, seconds):
        sys.exit("this project does not compile here (it needs nvcc, CMake, ninja, pybind11 and "
                 "scikit-build-core), and the parts have no wheel that fits")  # fmt: skip
    print(f"built for compute capability {capability}")


def _pip(target: Path) -> list[str]:
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
    return [*command, "--no-compile", "--target", str(target)]


def succeeds(command: list[str], variables: os._Environ[str], seconds: float) -> bool:
    try:
        return subprocess.run(command, env=variables, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{command[3]} takes longer than {seconds:.0f} s")
        return False


def loading_failure(work: Path, device: str) -> str | None:
    """Return why the installed extensions cannot be loaded; None if they can."""
    command = [str(work / "env/bin/python"), "-P", "-c", f"import {_EXTENSIONS[device]}"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    return None if done.returncode == 0 else (done.stderr.splitlines() or ["no message"])[-1]


def architecture(device: str) -> str:
    """Return the compute capability of the first GPU, such as 90; 90 where none is asked for."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, encoding="utf-8", check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        if device == "cpu":
            return "90"
        sys.exit(f"nvidia-smi does not answer ({error}): is there an NVIDIA driver?")
    return answer.split()[0].replace(".", "")


def onnxruntime(parts: Path, work: Path) -> None:
    archives = sorted((parts / "2").glob("*.tar.xz"))
    if not archives:
        sys.exit(f"{parts / '2'} has no onnxruntime-gpu (benchmarks/gpu/parts.sh makes it)")
    target = work / "site-onnxruntime"
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archives[0]) as archive:
        archive.extractall(target, filter="data")
    environment(work)
    if subprocess.run([str(work / "env/bin/python"), "-P", "-c", _STARTS]).returncode != 0:
        sys.exit("onnxruntime-gpu does not start its CUDA provider here")


def environment(work: Path) -> None:
    """Make WORK/env anew of what is unpacked, and of what the machine has."""
    sites = [site for site in sorted(work.glob("site-*")) if site.is_dir()]
    folder = work / "env"
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    (target,) = folder.glob("lib/python*/site-packages")
    machine = [Path(path) for path in sys.path if path.endswith("-packages")]
    taken = {"mirror_rt", "_editable_skbc_mirror_rt"}  # the second would lead to a clone
    if any((site / "onnxruntime").is_dir() for site in sites):
        taken.add("onnxruntime")
    for site in [*sites, *(path for path in machine if path.is_dir())]:
        found = {path: project(path.name) for path in site.iterdir() if path.name != "__pycache__"}
        for path, key in found.items():
            if key not in taken or (site in sites and not (target / path.name).exists()):
                (target / path.name).symlink_to(path)
        taken |= set(found.values())
    versions = [
        f"{d.name} {d.version}" for d in importlib.metadata.distributions(path=[str(target)])
    ]
    print(f"{folder}:", ", ".join(sorted(versions, key=str.lower)))


def project(name: str) -> str:
    """Return the package that an entry of site-packages belongs to: `x-1.2.dist-info` to `x`."""
    return re.sub(r"[-.].*", "", name).lower()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="do", required=True)
    for name in ("product", "onnxruntime"):
        command = commands.add_parser(name)
        command.add_argument("parts", type=Path)
        command.add_argument("work", type=Path)
    commands.choices["product"].add_argument("--seconds", type=float, default=140)
    commands.choices["product"].add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    commands.add_parser("about").add_argument("architecture")
    arguments = parser.parse_args()
    if arguments.do == "about":
        print(json.dumps(about(arguments.architecture)))
        return
    work = arguments.work.resolve()  # links must not depend on the working directory
    work.mkdir(parents=True, exist_ok=True)
    if arguments.do == "product":
        product(arguments.parts, work, arguments.device, arguments.seconds)
    else:
        onnxruntime(arguments.parts, work)


if __name__ == "__main__":
    main()
