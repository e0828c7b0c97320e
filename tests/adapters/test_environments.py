"""The tests beside this file that the main environment skips, each in one with its library."""

import os
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest

from interop.environments import ADAPTERS
from mirror_rt import _core
from paths import ROOT

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder to import this project from, and nothing else of this environment."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "mirror_rt").mkdir()
    for path in (ROOT / "train" / "mirror_train", ROOT / "export" / "mirror_export"):
        (folder / path.name).symlink_to(path)
    native = Path(_core.__file__)
    for path in [*(ROOT / "mirror_rt").iterdir(), native]:
        (folder / "mirror_rt" / path.name).symlink_to(path)
    installed = Path(distribution("mirror-rt").locate_file(""))
    for path in installed.glob("mirror_rt-*.dist-info"):  # which knows the version
        (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.full
@pytest.mark.interop
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter(adapter, site, model, tiny_bert, tiny_reranker):
    tool = ADAPTERS[adapter]
    tool.require()
    # Their warnings are theirs; of this repository's conftest.py only the one in this folder.
    options = ["-o", "filterwarnings=", "-p", "no:cacheprovider", f"--confcutdir={HERE}"]
    environment = os.environ | {"PYTHONPATH": str(site), "MIRROR_RT_ADAPTER_MODEL": str(model),
                                "MIRROR_RT_ADAPTER_BASE": str(tiny_bert),
                                "MIRROR_RT_ADAPTER_RERANKER": str(tiny_reranker("bert")),
                                "HF_HUB_OFFLINE": "1"}  # fmt: skip
    done = subprocess.run(
        [tool.python, "-P", "-m", "pytest", "-q", *options, HERE / tool.script],
        cwd=site, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout
