"""Run the steps of benchmarks/gpu.sh, keep the findings of each, and sum them up.

    bash benchmarks/gpu.sh OUT [--stage N ...] [--seconds S] [--parts FOLDER] [--work FOLDER]
                               [--again] [--patience FACTOR] [--device cpu] [--list]

Stage 1 asks whether the fast core of the loss is right, and how fast it is; stage 2, only if it is
right, measures the encoder. A step is a command in a process of its own, with a time limit that
ends it. What does not fit into --seconds is left out. What a step printed and measured is copied
every few seconds, so a machine that is taken away leaves it:

    OUT/gpu.json   every step: verdict, seconds, figures
    OUT/gpu.md     the goals (met or missed), the steps and the tables of figures
    OUT/log.txt    what the steps printed

They are copies: what is known lies in the folder of --work, so OUT may be emptied between two runs.
A second run repeats only the steps that have not passed (--again repeats all). If the sources have
changed in between, it starts from the beginning. The last line is `VERDICT: right`, `wrong` or
`hangs`; what is not proved right is wrong. The exit status is 0 if it is right.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import site
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from gpu.runner import Runner

_TOOLS = "/usr/local/cuda/bin"  # where the CUDA toolkit is, even if it is not on the path


def main() -> int:
    from gpu.report import summarize
    from gpu.steps import about, make_stages

    arguments = _parse()
    stages = make_stages(arguments)
    if arguments.list:
        for number, stage in stages.items():
            print(f"stage {number}: {stage.title}")
            for step in stage.steps:
                print(f"   {step.name} ({step.limit:.0f} s): {' '.join(step.command)}")
        return 0
    if unknown := [number for number in arguments.stage or () if number not in stages]:
        sys.exit(f"gpu.sh: --stage {unknown[0]}: the stages are {', '.join(map(str, stages))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running step ends, too
    environment = _environment(arguments.work)
    runner = Runner(
        arguments.out, arguments.work / "steps", about(arguments), summarize, arguments.seconds
    )
    for number in arguments.stage or stages:
        if number > 1 and runner.verdict({1: stages[1]}) in ("wrong", "hangs"):
            print(f"stage {number} is left out: the fast core of the loss is not right")
            continue
        runner.run(number, stages[number], environment, again=arguments.again)
    with contextlib.suppress(OSError):
        table = (arguments.out / "gpu.md").read_text(encoding="utf-8")
        print(f"\n{table}\nreport: {arguments.out}/gpu.md")
    verdict = runner.verdict(stages) or "wrong"
    print(f"VERDICT: {verdict}", flush=True)
    return int(verdict != "right")


def _environment(work: Path) -> dict[str, str]:
    """Return the variables of steps: tools are found, and nothing is written to the user's home."""
    home = work / "home"
    home.mkdir(parents=True, exist_ok=True)
    return os.environ | {
        "HOME": str(home),
        "PYTHONUSERBASE": site.getuserbase(),  # packages of the user are found as before
        "PATH": os.pathsep.join((os.environ.get("PATH", os.defpath), _TOOLS)),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _parse() -> argparse.Namespace:
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(
        prog="gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the report")
    parser.add_argument("--stage", type=int, action="append", help="run this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="for everything (default: as long as the steps' limits)")  # fmt: skip
    parser.add_argument("--parts", type=Path, help="what benchmarks/gpu/parts.sh made, or some of "
                        "it (default: build/gpu-parts)")  # fmt: skip
    parser.add_argument("--work", type=Path, help="what steps leave for one another: packages, "
                        "models (default: build/gpu)")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="repeat steps that have passed")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: few texts and rows on the CPU, to rehearse the run")  # fmt: skip
    parser.add_argument("--patience", type=float, default=1.0, metavar="FACTOR",
                        help="multiply every limit, on a slow machine (default 1)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="show the steps and run none")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    arguments.parts = (arguments.parts or root / "build" / "gpu-parts").resolve()
    arguments.work = (arguments.work or root / "build" / "gpu").resolve()
    arguments.started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")
    os.chdir(root)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
