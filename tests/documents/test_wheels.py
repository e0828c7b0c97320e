"""What is written about wheels in several places agrees."""

import re
import subprocess
import tomllib

import pytest
import yaml

from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = ROOT / ".github" / "workflows"


def test_every_python_is_declared_built_and_tried():
    declared = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"]
                if re.search(r"Python :: 3\.\d+$", line)]  # fmt: skip
    built = re.findall(r"cp3(\d+)-\*", PROJECT["tool"]["cibuildwheel"]["build"])
    jobs = yaml.safe_load((WORKFLOWS / "wheels.yml").read_text())["jobs"]
    assert declared == [f"3.{minor}" for minor in built]
    assert jobs["try"]["strategy"]["matrix"]["python"] == declared
    assert jobs["try-alpine"]["strategy"]["matrix"]["python"] == declared
    assert jobs["try"]["strategy"]["matrix"]["os"] == jobs["build"]["strategy"]["matrix"]["os"]


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_workflows_name_files_that_exist_and_may_do_little(path):
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name in re.findall(r"(?:deploy|tests)/[\w.]+\.(?:sh|py)", text):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize(
    "script", ["deploy/wheels.sh", "deploy/install_nvcc.sh", "deploy/other_pythons.sh"]
)
def test_scripts_are_valid(script):
    subprocess.run(["bash", "-n", ROOT / script], check=True)
