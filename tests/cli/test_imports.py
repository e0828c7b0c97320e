"""What each package pulls in, and what it says where an extra is missing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mirror_rt.cli.commands import GROUPS, installed_commands
from paths import ROOT
from rounding import NORM_ERROR


def python(code, executable=sys.executable, **options):
    return subprocess.run(
        [executable, "-c", code], capture_output=True, text=True, check=False, **options
    )


def test_import_is_light():
    code = (
        "import mirror_rt, mirror_rt.evaluation, sys; "
        "heavy = ['torch', 'transformers', 'onnxruntime', 'tokenizers', 'onnx',"
        "'matplotlib', 'huggingface_hub',"
        # Each would be a fifth or more of the 40 ms that mirror_rt takes without it.
        "'importlib.metadata', 'asyncio', 'concurrent.futures', 'email', 'scipy', 'argparse',"
        "'subprocess', 'starlette', 'uvicorn', 'msgspec', 'httpx2'];"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = python(code)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_run_time_never_loads_the_training_stack(bundle):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
        f"from mirror_rt import Encoder; print(Encoder.load({str(bundle)!r}).encode('a').shape)"
    )
    done = python(code)
    assert done.stdout.strip() == "(32,)", done.stderr


MISSING = [
    ("torch", "train", "import mirror_train; mirror_train.tune"),
    ("torch", "train", "import mirror_train.systems as s\n"
     "s.train('flow', None, s.TrainConfig(out='o', recipe=s.FlowRecipe()))"),
    ("onnxruntime", "cpu", "mirror_rt.Encoder.load({bundle!r}, providers='cpu')"),
    ("huggingface_hub", "hub", "mirror_rt.Encoder.load('owner/name')"),
    ("starlette", "serve", "from mirror_rt.server import create_app"),
    ("msgspec", "serve", "from mirror_rt.server import create_app"),
    ("httpx2", "client", "mirror_rt.Client()"),
    ("wordfreq", "demo", "import mirror_train; mirror_train.word_list('en')"),
    ("py3langid", "detect",
     "from mirror_rt.languages import detection as d; d.language_detector(['en'])"),
]  # fmt: skip
MISSING_BESIDE_TORCH = [
    ("transformers", "train", "import mirror_train; mirror_train.TorchEncoder"),
    ("transformers", "train", "import mirror_train.systems as s\n"
     "s.train('burt', None, s.TrainConfig(out='o', recipe=s.BurtRecipe()))"),
    ("onnxscript", "export", "import mirror_export; mirror_export.export_bundle"),
    ("onnxscript", "export", "from mirror_rt.plugins import load_plugin\n"
     "load_plugin('mirror_train.openers', 'bundle', purpose='a study')"),
]  # fmt: skip
# Each in a fork of a process that has imported what all of them import.
HIDE = """
import importlib.abc, json, os, sys, mirror_rt

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name.split(".")[0] == hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
for hidden, code in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    try:
        exec(code)
    except mirror_rt.MissingDependencyError as error:
        print(error, flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize(
    "missing",
    [MISSING, pytest.param(MISSING_BESIDE_TORCH, marks=pytest.mark.full)],
    ids=["quick", "beside torch"],
)
def test_a_missing_extra_is_named(bundle, missing):
    cases = [(module, code.format(bundle=str(bundle))) for module, _, code in missing]
    done = python(HIDE, input=json.dumps(cases))
    found = done.stdout.splitlines()
    assert len(found) == len(missing), done.stderr
    for (module, extra, code), said in zip(missing, found, strict=True):
        assert f"pip install 'mirror-rt[{extra}]'" in said, (module, code, said)


WITHOUT_TORCH = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'onnx']))\n"
RUN = "from mirror_rt.cli import main\nraise SystemExit(main(sys.argv[1:]))"


def mirror_rt(*arguments, before=""):
    """Run a command without torch, after other statements."""
    line = [sys.executable, "-c", WITHOUT_TORCH + before + RUN, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_recipes_and_configurations_need_no_torch():
    done = python(
        WITHOUT_TORCH + "import mirror_train as m\n"
        "from mirror_export import ExportConfig\n"
        "from mirror_train.experiments import mirror_studies\n"
        "from mirror_train.experiments.systems_study import ENTRIES\n"
        "from mirror_train.systems import SYSTEMS, CfRecipe\n"
        "m.load_languages(), m.load_recipe('word'), m.TrainConfig, m.load_training_data\n"
        "assert all((mirror_studies.STUDIES, SYSTEMS, ENTRIES))\n"
        "print(CfRecipe().mirror.level)\n"
        "print([name for name, module in sys.modules.items() if name == 'scipy' and module])"
    )
    assert done.stdout.split() == ["sentence", "[]"], done.stderr


def test_all_commands_are_listed_in_one_list_with_the_extras_that_they_lack():
    done = mirror_rt("--help")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert (
        "tune a masked language model on raw strings (Mirror-BERT) (needs the extra train)" in text
    )
    assert "checked against PyTorch (needs the extra export)" in text
    assert "texts of a file into vectors predict" in text  # onnxruntime is there
    assert "language is tuned with measure:" in text  # recipes needs nothing more
    groups = [line for line in done.stdout.splitlines() if line.endswith(":")]
    assert groups == ["use a model:", "make a model:", "measure:", "operate:"]


# Lines of the command line, one after the other in a process without torch.
LINES = """
import contextlib, io, json
from mirror_rt.cli.main import main

def result(line):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line)
        except SystemExit as error:
            code = error.code
    return code, out.getvalue(), err.getvalue()

print(json.dumps([result(line) for line in json.load(sys.stdin)]))
"""


def results(*lines):
    """The exit status, the output and the errors of each line."""
    done = python(WITHOUT_TORCH + LINES, input=json.dumps(lines))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_needs_no_torch_and_names_no_file_that_a_wheel_lacks():
    commands = sorted(installed_commands())
    assert {"tune", "train burt", "study", "sample", "recipes", "export", "demo"} <= set(commands)
    for name, (code, out, err) in zip(
        commands, results(*([*name.split(), "--help"] for name in commands)), strict=True
    ):
        assert code == 0, (name, err)
        assert installed_commands()[name].group in GROUPS
        assert out.startswith(f"usage: mirror-rt {name}")
        assert f"mirror-rt {name}" in out.partition("examples:")[2]
        assert not [word for word in ("None", "True", "False", "`") if word in out], name
        assert "docs/" not in out


NEEDS = [
    (["tune", "--recipe", "word", "--words", "en", "--out", "x"], "train"),
    (["study", "systems", "--data", "x", "--out", "x"], "train"),
    (["export", "x", "--out", "y"], "export"),
    (["demo"], "export"),
    (["evaluate", "geometry", "--model", ".", "--texts", __file__], "train"),
]


def test_a_command_runs_or_says_which_extra_it_lacks():
    recipes, *others = results(["recipes", "fr", "--level", "word"], *(line for line, _ in NEEDS))
    assert recipes[0] == 0, recipes
    assert "temperature" in recipes[1]
    for (line, extra), (code, _, err) in zip(NEEDS, others, strict=True):
        assert (code, len(err.strip().splitlines())) == (1, 1), (line, err)
        assert f"pip install 'mirror-rt[{extra}]'" in err


def test_without_metadata_the_other_packages_are_said_to_be_missing():
    """A checkout on the path that was never installed, or before the entry points were there."""
    none = "import importlib.metadata as m; m.entry_points = lambda **_: []\n"
    done = mirror_rt("tune", before=none)
    assert done.returncode == 2
    assert "no command 'tune': the metadata" in done.stderr
    assert "pip install -e ." in done.stderr
    assert "Not everything is listed" in mirror_rt("--help", before=none).stdout
    assert mirror_rt("info", "--help", before=none).returncode == 0
    nothing = mirror_rt("evaluate", "geometry", "--model", ".", "--texts", __file__, before=none)
    assert nothing.returncode == 1
    assert "pip install -e ." in nothing.stderr


@pytest.fixture(scope="module")
def clean():
    """A Python with the built wheel alone, made by tests/run.sh."""
    return os.environ["MIRROR_RT_CLEAN_PYTHON"]


def test_clean_environment_has_no_training_stack(clean):
    done = python(
        "import importlib.util as u; "
        "names = ('torch', 'transformers', 'onnx', 'onnxruntime', 'matplotlib'); "
        "print([name for name in names if u.find_spec(name)])",
        clean,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_clean_environment_knows_what_the_wheel_contains(clean):
    """Of others: a list in the metadata (PEP 770), and their licences."""
    done = python(
        "import json\nfrom importlib.metadata import distribution\n"
        "wheel = distribution('mirror-rt')\n"
        "sbom = json.loads(wheel.read_text('sboms/sbom.cdx.json'))\n"
        "print(wheel.version == sbom['metadata']['component']['version'],"
        " *(one['name'] for one in sbom['components']), 'MIT License' in"
        " wheel.read_text('licenses/mirror_rt/server/http/scalar.LICENSE.txt'), 'Jakob' in"
        " wheel.read_text('licenses/cmake/pybind11.LICENSE.txt'))",
        clean,
    )
    named = ["pybind11", "@scalar/api-reference"]
    assert done.stdout.split() == ["True", *named, "True", "True"], done.stderr


def test_clean_environment_encodes(clean, bundle, tmp_path):
    import numpy as np

    from mirror_rt import Encoder

    texts = ["the river", "人生", "a"]
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    command = str(Path(clean).with_name("mirror-rt"))
    for arguments in (
        ["info", str(bundle)],
        ["encode", "--model", str(bundle), "--input", "in.txt", "--output", "v.npy"],
    ):
        done = subprocess.run([command, *arguments], cwd=tmp_path, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
    expected = Encoder.load(bundle).encode(texts)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=NORM_ERROR)


def test_the_source_folder_says_what_to_do(tmp_path):
    """Python started in a clone finds the sources, which have no compiled part, first."""
    without = shutil.ignore_patterns("_core*.so", "__pycache__")
    shutil.copytree(ROOT / "mirror_rt", tmp_path / "mirror_rt", ignore=without)
    isolated = [sys.executable, "-S"]  # an editable install would be found before the folder
    for line in (["-c", "import mirror_rt"], ["-c", "from mirror_rt import Encoder"],
                 ["-m", "mirror_rt.cli", "--help"]):  # fmt: skip
        done = subprocess.run(
            [*isolated, *line], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert "is the source folder of mirror_rt" in last
        assert "start Python in another folder" in last
        assert "pip install -e ." in last


def test_words_without_wordfreq_are_refused_before_torch_is_imported(tmp_path):
    """Importing torch takes half a minute on a busy machine."""
    lines = (["--words", "en"], ["--lang", "en,fr"], ["--lang", "en,fr", "--joint"])
    code = (
        "import sys; sys.modules['wordfreq'] = None; from mirror_rt.cli.main import main\n"
        f"for line in {lines}: print(main(['tune', *line, '--quiet', '--out', 'out']), "
        "'torch' in sys.modules)"
    )
    done = python(code, cwd=tmp_path)
    ends = [line for line in done.stdout.splitlines() if not line.startswith("recipe ")]
    assert ends == ["1 False"] * 3, done.stdout + done.stderr
    assert done.stderr.count("pip install 'mirror-rt[demo]'") == 3
