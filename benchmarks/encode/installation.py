"""Measure the cost of an installation: packages, megabytes on the disk, and seconds of pip.

    python benchmarks/encode/installation.py [--rounds 3] [--out FOLDER]

Each contender is installed in turn into a fresh environment, from wheels that one run of pip has
fetched before, so that no network is timed. What is in the environment without it (pip) does not
count, nor do compiled files, which pip is told not to make. The import that a program begins with
is timed in a second process, when the files and their compiled forms are in memory.
"""

from __future__ import annotations

import argparse
import datetime
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from setup import ORT, ROOT, packages_folder, processor_class

from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.io.tables import markdown_table

CONTENDERS = {
    "mirror-rt": (("mirror-rt",), "from mirror_rt import Encoder"),
    "mirror-rt[cpu]": (("mirror-rt", ORT), "from mirror_rt import Encoder"),
    "fastembed": (("fastembed==0.9.1", ORT), "from fastembed import TextEmbedding"),
    "sentence-transformers": (
        ("sentence-transformers==6.2.0", "transformers==5.23.0", "torch==2.13.0"),
        "from sentence_transformers import SentenceTransformer",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    seconds = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", work / "own", ROOT)
        for name, (packages, _) in CONTENDERS.items():
            print(f"fetching {name}", flush=True)
            wheels = ("--find-links", work / "own", "--wheel-dir", work / "wheels" / name)
            pip(sys.executable, "wheel", *wheels, *packages)
        sizes = {}
        for _ in range(arguments.rounds):
            for name, (packages, begin) in CONTENDERS.items():
                spent, *size = install(
                    work / "environment", work / "wheels" / name, packages, begin
                )
                seconds[name].append(spent)
                sizes[name] = size
                print(name, round(spent, 1), size, flush=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = machine_name()
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    lines = [
        f"{machine} ({processor_class()}), {today}; medians of {arguments.rounds} rounds; wheels "
        "fetched beforehand. `python benchmarks/encode/installation.py`",
        "",
        markdown_table(
            ["", "packages", "MB of wheels", "MB on the disk", "pip install, s", "import, s"],
            (
                [
                    name,
                    str(count),
                    f"{wheels:.0f}",
                    f"{disk:.0f}",
                    f"{statistics.median(seconds[name]):.1f}",
                    f"{importing:.2f}",
                ]
                for name, (count, wheels, disk, importing) in sizes.items()
            ),
            numbers=True,
        ),
    ]
    path = arguments.out / f"installation-{today}-{slug}.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


def install(environment: Path, wheels: Path, packages: tuple[str, ...], begin: str):
    """Install packages; return seconds, their number, MB of wheels and on the disk, and import."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    python, folder = environment / "bin" / "python", packages_folder(environment)
    before = megabytes(folder)
    began = time.perf_counter()
    pip(python, "install", "--no-compile", "--no-index", "--find-links", wheels, *packages)
    spent, files = time.perf_counter() - began, list(wheels.iterdir())
    disk = megabytes(folder) - before
    importing = []
    for _ in range(4):  # the first one compiles
        began = time.perf_counter()
        subprocess.run([python, "-c", begin], check=True, cwd=environment)
        importing.append(time.perf_counter() - began)
    return spent, len(files), megabytes(wheels), disk, statistics.median(importing[1:])


def pip(python, *arguments) -> None:
    line = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(list(map(str, line)), check=True)


def megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
