"""benchmarks/gpu.sh as it will be run, but on the CPU: no network, a read-only home, a fresh clone.

Faults are put into the run by a sitecustomize: a contender that hangs, crashes or fills the disk.
MIRROR_RT_CARD_PYTHON names another Python with torch, and MIRROR_RT_CARD_PARTS the boxes for it.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from gpu import install
from gpu.runner import CUT, FAILED, OVERRAN, PASSED

ISOLATED = ["unshare", "--map-root-user", "--net", "--mount"]
DISK = "20m"  # for all that steps write, in the test of a full disk
PATIENCE = 100  # limits that a busy machine does not reach either: no test waits for their end
HASTE = 1  # where the step that hangs is the only one to run
FAULT = """
import os, sys, tempfile
name, fault = os.environ["REHEARSED"].split(":")
def fails(*_):
    if fault == "hang":
        while True: pass
    if fault == "crash":
        os.abort()
    with open(tempfile.mkstemp()[1], "wb") as stream:
        while True: stream.write(bytes(1 << 20))
class Finder:
    def find_spec(self, module, path=None, target=None):
        if module != "loss.compare" and module != "loss.report": return None
        import loss.contenders
        loss.contenders.CONTENDERS[name] = fails
if sys.orig_argv[1:2] == ["benchmarks/loss/compare.py"]:
    sys.meta_path.insert(0, Finder())
"""

pytestmark = [pytest.mark.full, pytest.mark.needs("namespaces")]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A fresh clone, boxes, and a home that cannot be written; tests go on where others ended."""
    folder = tmp_path_factory.mktemp("machine")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "clone" / name)
    (folder / "home").mkdir()
    (folder / "faults").mkdir()
    (folder / "faults" / "sitecustomize.py").write_text(FAULT)
    parts = folder / "clone" / "build" / "gpu-parts"
    if "MIRROR_RT_CARD_PARTS" in os.environ:
        shutil.copytree(os.environ["MIRROR_RT_CARD_PARTS"], parts)
    else:
        make_box(parts / "1")
    return folder


def make_box(box: Path) -> None:
    """Pack what is installed here as a wheel, so that nothing is compiled."""
    from mirror_rt import _core

    box.mkdir(parents=True)
    about = importlib.metadata.distribution("mirror_rt")
    info = f"mirror_rt-{about.version}.dist-info"
    files = {f"mirror_rt/{Path(_core.__file__).name}": Path(_core.__file__)}
    for folder in (ROOT / "mirror_rt", ROOT / "train" / "mirror_train",
                   ROOT / "export" / "mirror_export"):  # fmt: skip
        files |= {
            path.relative_to(folder.parent).as_posix(): path
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    record = io.StringIO()
    csv.writer(record).writerows([name, "", ""] for name in [*files, f"{info}/RECORD"])
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-linux_x86_64\n"
    with zipfile.ZipFile(box / f"mirror_rt-{about.version}-{tag}-{tag}-linux_x86_64.whl", "w") as z:
        for name, path in files.items():
            z.write(path, name)
        z.writestr(f"{info}/METADATA", about.read_text("METADATA"))
        z.writestr(f"{info}/WHEEL", wheel)
        z.writestr(f"{info}/RECORD", record.getvalue())
    (box / install.ABOUT).write_text(json.dumps(install.about("90")))


def start(machine, *options, fault=""):
    """Start the script in empty namespaces."""
    mounts = f"mount --bind {machine}/home {machine}/home"
    mounts += f" && mount -o remount,bind,ro {machine}/home"
    if fault.endswith("fill"):
        steps, kept = f"{machine}/clone/build/gpu/steps", f"{machine}/kept"
        mounts += f" && mkdir -p {steps} && cp -a {steps} {kept}"
        mounts += f" && mount -t tmpfs -o size={DISK} tmpfs {steps} && cp -a {kept}/. {steps}"
    run = f'{mounts} && cd "{machine}/clone" && exec bash benchmarks/gpu.sh "$@"'
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": f"{machine}/home", "OMP_NUM_THREADS": "1",
        "PYTHON": os.environ.get("MIRROR_RT_CARD_PYTHON", sys.executable),
    }  # fmt: skip
    if fault:
        environment |= {"REHEARSED": fault, "PYTHONPATH": str(machine / "faults")}
    patience = HASTE if fault.endswith("hang") else PATIENCE
    words = [str(machine / "out"), "--device", "cpu", "--patience", str(patience), *options]
    return subprocess.Popen(
        [*ISOLATED, "bash", "-c", run, "bash", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def report(machine):
    with contextlib.suppress(OSError, json.JSONDecodeError):
        found: dict = json.loads((machine / "out" / "gpu.json").read_text())["steps"]
        return found
    return {}


def finish(process):
    return process.communicate()[0].splitlines()


STEPS = ["install", "machine", "agrees", "tests-tma", "speed", "million-rows", "rivals",
         "tests-mma"]  # fmt: skip


def cut(machine, place):
    """Start the script, and kill it once its report tells of a step; return what is left.

    All processes end, as with the machine: from other namespaces the next call could not end them.
    """
    process, told = start(machine, "--stage", "1"), machine / "out" / "gpu.md"
    while not (told.is_file() and f"| {place} |" in told.read_text()):
        assert process.poll() is None, finish(process)
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return report(machine)


def test_cuts_lose_no_step_that_had_ended_and_the_next_call_goes_on(machine):
    """As a machine that is taken away after 60, 200 and 390 seconds: all at once, untold."""
    for place in ("agrees", "tests-tma", "rivals"):
        found = cut(machine, place)
        before = STEPS[: STEPS.index(place)]
        assert list(found) == [*before, place]
        assert {found[name]["verdict"] for name in before} == {PASSED}
        assert found[place]["verdict"] in (CUT, PASSED)
        ended = {name: found[name]["seconds"] for name in before}
        shutil.rmtree(machine / "out")  # as the machine does before each command
    told = finish(start(machine, "--stage", "1", "--seconds", str(400 * PATIENCE)))
    found = report(machine)
    assert {name: of["verdict"] for name, of in found.items()} == dict.fromkeys(STEPS, PASSED)
    assert {name: found[name]["seconds"] for name in ended} == ended  # none ran again
    assert told[-1] == "VERDICT: right"
    assert list((machine / "home").iterdir()) == []
    (size,) = found["rivals"]["result"]["results"]
    assert set(size["contenders"]) == {"mirror_rt", "PyTorch"}, size["left_out"]


@pytest.fixture(scope="module")
def proved(machine):
    """The machine where all has passed, but the step of the contenders has not run."""
    assert finish(start(machine, "--stage", "1"))[-1] == "VERDICT: right"
    kept = machine / "clone" / "build" / "gpu" / "steps" / "state.json"
    state = json.loads(kept.read_text())
    del state["steps"]["rivals"]
    kept.write_text(json.dumps(state))
    return machine


@pytest.mark.parametrize(
    ("fault", "verdict", "why"),
    [
        ("crash", FAILED, "ended by SIGABRT"),
        ("fill", FAILED, "exit status 1"),
        ("hang", OVERRAN, "killed after 90 s"),
    ],
)
def test_a_contender_that_fails_takes_nothing_with_it(proved, fault, verdict, why):
    """The step has not passed, so that each call runs it again."""
    told = finish(start(proved, "--stage", "1", fault=f"PyTorch:{fault}"))
    found = report(proved)
    assert (found["rivals"]["verdict"], found["rivals"]["why"]) == (verdict, why)
    assert "mirror_rt" in found["rivals"]["result"]["results"][0]["contenders"]
    assert {of["verdict"] for name, of in found.items() if name != "rivals"} == {PASSED}
    assert told[-1] == "VERDICT: right"
    assert f"| rivals | {verdict} |" in (proved / "out" / "gpu.md").read_text()
