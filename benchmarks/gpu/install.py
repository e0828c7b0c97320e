"""Install the packages of benchmarks/gpu.sh, without a network, beside the machine's Python.

    python benchmarks/gpu/install.py build PARTS WORK [--device cpu] [--seconds 180]
    python benchmarks/gpu/install.py environment NAME PARTS WORK [--device cpu]

Wheels, and archives of unpacked ones, are unpacked into WORK/site-NAME. An environment, WORK/NAME,
holds only links: to these packages, and to everything else that the machine's own Python has, such
as torch and its NVIDIA libraries. So these lie beside onnxruntime-gpu, which looks for them there.
If onnxruntime-gpu came with the parts, the machine's onnxruntime is not linked, because the two
overwrite each other's files.

`build` compiles this project for the GPU of this machine, without isolation and without
dependencies. If that fails or takes longer than --seconds, it uses the wheel that came with the
parts, provided that it was built from the same sources, and says so. With --device cpu it compiles
for compute capability 9.0 if there is no GPU, and the machine's onnxruntime is used, since
onnxruntime-gpu does not run without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.setup import ROOT, fingerprint
from gpu.parts import join

# Environment -> the groups of wheels in it; of a package in several groups, the first is used.
GROUPS = {"env": ("product", "tools", "gpu"), "rival": ("rival", "gpu")}


def joined(parts: Path, work: Path) -> Path:
    for name in join(parts, work / "files"):
        print(f"not whole yet: {name}")
    return work / "files"


def build(parts: Path, work: Path, device: str, seconds: float) -> None:
    files, capability = joined(parts, work), architecture(device)
    tools = unpack(files, "tools", work)
    target = work / "site-product"
    shutil.rmtree(target, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--verbose"),
        *("--no-build-isolation", "--target", str(target)),
        f"--config-settings=build-dir={work / 'build'}",
        "--config-settings=cmake.define.MIRROR_RT_CUDA=ON",
        f"--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES={capability}",
        str(ROOT),
    ]
    environment = os.environ | {"PYTHONPATH": str(tools)}
    if succeeds(command, environment, seconds):
        print(f"built for compute capability {capability}")
    else:
        shutil.rmtree(target, ignore_errors=True)
        wheel = next((files / "product" / fingerprint()).glob("*.whl"), None)
        if wheel is None:
            sys.exit("the build failed, and the parts have no wheel of these sources")
        pip([wheel], target)
        print(f"THE BUILD FAILED: {wheel.name}, which came with the parts, is used instead")
    environment_of("env", parts, work, device)


def succeeds(command: list[str], environment: dict[str, str], seconds: float) -> bool:
    try:
        return subprocess.run(command, env=environment, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def architecture(device: str) -> str:
    """Return the compute capability of the first GPU, such as 90; 90 where none is asked for."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        if device == "cpu":
            return "90"
        sys.exit(f"nvidia-smi does not answer ({error}): is there an NVIDIA driver?")
    return answer.split()[0].replace(".", "")


def environment_of(name: str, parts: Path, work: Path, device: str) -> None:
    files = joined(parts, work)
    sites = [
        work / "site-product" if group == "product" else unpack(files, group, work)
        for group in GROUPS[name]
        if group != "gpu" or device == "cuda"
    ]
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    (target,) = folder.glob("lib/python*/site-packages")
    machine = [Path(path) for path in sys.path if path.endswith("-packages")]
    taken = {"mirror_rt", "_editable_skbc_mirror_rt"}  # the second would lead to a clone
    if any((site / "onnxruntime").is_dir() for site in sites):
        taken.add("onnxruntime")
    for site in [*sites, *machine]:
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


def unpack(files: Path, group: str, work: Path) -> Path:
    """Return the folder of a group's packages, unpacked anew if more wheels have arrived."""
    target, stamp = work / f"site-{group}", work / f"site-{group}.txt"
    wheels, archives = (sorted((files / group).glob(kind)) for kind in ("*.whl", "*.tar.xz"))
    arrived = str(wheels + archives)
    if wheels + archives and (not stamp.is_file() or stamp.read_text() != arrived):
        shutil.rmtree(target, ignore_errors=True)
        if wheels:
            pip(wheels, target)
        for path in archives:
            with tarfile.open(path) as archive:
                archive.extractall(target, filter="data")
        stamp.write_text(arrived)
    target.mkdir(parents=True, exist_ok=True)
    return target


def pip(wheels: list[Path], target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(target), *map(str, wheels)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="do", required=True)
    commands.add_parser("build").add_argument("--seconds", type=float, default=180)
    commands.add_parser("environment").add_argument("name", choices=GROUPS)
    for command in commands.choices.values():
        command.add_argument("parts", type=Path)
        command.add_argument("work", type=Path)
        command.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()  # links must not depend on the working directory
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.do == "build":
        build(arguments.parts, arguments.work, arguments.device, arguments.seconds)
    else:
        environment_of(arguments.name, arguments.parts, arguments.work, arguments.device)


if __name__ == "__main__":
    main()
