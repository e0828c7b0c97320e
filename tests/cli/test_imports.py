"""What each package pulls in, and what it says where an extra is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT

PUBLIC = [
    "AsyncClient", "BundleError", "BundleIntegrityError", "BundleVersionError", "Client",
    "ClosedError", "ConfigError", "DataError", "DeadlineError", "EncodedTexts", "Encoder",
    "HubError", "InvalidTextError", "LanguagePack", "Manifest", "MirrorError",
    "MissingDependencyError", "ModelError", "NonFiniteError", "OutputExistsError",
    "OverloadedError", "ParityError", "Predictor", "ProcessGroupError", "ProviderError",
    "ReentrantCallError", "Scheduler", "SearchResult", "ServerError", "__version__",
    "calibration_ranges", "quantize_embeddings", "search",
]  # fmt: skip


def python(code, executable=sys.executable, **options):
    return subprocess.run(
        [executable, "-c", code], capture_output=True, text=True, check=False, **options
    )


def test_public_names():
    import mirror_rt

    assert mirror_rt.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(mirror_rt, name) is not None


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the module resource")
def test_import_is_quick():
    """Processor time, which neighbours disturb least; 60 ms beyond numpy's own is the goal."""

    def seconds(code):
        count = (
            "import resource as r; u = r.getrusage(r.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
        )
        return min(float(python(f"{code}; {count}").stdout) for _ in range(4))

    numpy, both = seconds("import numpy"), seconds("import numpy, mirror_rt")
    assert both - numpy < max(0.06, 1.5 * numpy)


def test_run_time_never_loads_the_training_stack(bundle):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
        f"from mirror_rt import Encoder; print(Encoder.load({str(bundle)!r}).encode('a').shape)"
    )
    done = python(code)
    assert done.stdout.strip() == "(32,)", done.stderr


@pytest.mark.parametrize(
    ("module", "extra", "code"),
    [
        ("torch", "train", "import mirror_train"),
        ("transformers", "train", "import mirror_train"),
        ("onnxscript", "export", "import mirror_export"),
        ("onnxruntime", "cpu", "mirror_rt.Encoder.load({bundle!r})"),
        ("huggingface_hub", "hub", "mirror_rt.Encoder.load('owner/name')"),
        ("starlette", "serve", "from mirror_rt.server import create_app"),
        ("msgspec", "serve", "from mirror_rt.server import create_app"),
        ("httpx2", "client", "mirror_rt.Client()"),
        ("wordfreq", "demo", "import mirror_train; mirror_train.word_list('en')"),
        (
            "py3langid",
            "detect",
            "from mirror_rt.languages import detection as d; d.language_detector(['en'])",
        ),
    ],
)
def test_a_missing_extra_is_named(module, extra, code, bundle):
    hide = (
        "import sys, importlib.abc, mirror_rt\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name.split('.')[0] == {module!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    done = python(hide + code.format(bundle=str(bundle)))
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingDependencyError" in last
    assert f"pip install 'mirror-rt[{extra}]'" in last


@pytest.fixture(scope="module")
def clean():
    """A Python with the built wheel and its `cpu` extra alone, made by tests/run.sh."""
    path = os.environ.get("MIRROR_RT_CLEAN_PYTHON")
    if not path:
        pytest.skip("MIRROR_RT_CLEAN_PYTHON is not set: bash tests/run.sh makes that environment")
    return path


def test_clean_environment_has_no_training_stack(clean):
    done = python(
        "import importlib.util as u; "
        "print([n for n in ('torch', 'transformers', 'onnx', 'matplotlib') if u.find_spec(n)])",
        clean,
    )
    assert done.stdout.strip() == "[]", done.stderr


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
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["tune", "--recipe", "word", "--words", "en", "--out", "x"], "train"),
        (["export", "x", "--out", "y"], "export"),
        (["demo"], "demo"),
        (["serve", "bundle"], "serve"),
        (["evaluate", "geometry", "--model", ".", "--texts", "in.txt"], "train"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_clean_environment_says_which_extra_is_missing(clean, arguments, extra, tmp_path):
    (tmp_path / "in.txt").write_text("a\nb\n")
    command = str(Path(clean).with_name("mirror-rt"))
    done = subprocess.run([command, *arguments], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("mirror-rt: error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"pip install 'mirror-rt[{extra}]'" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]


@pytest.mark.parametrize(
    "line",
    [
        ["-c", "import mirror_rt"],
        ["-c", "from mirror_rt import Encoder"],
        ["-m", "mirror_rt.cli", "--help"],
    ],
)
def test_the_source_folder_says_what_to_do(tmp_path, line):
    """Python started in a clone finds the sources, which have no compiled part, first."""
    without = shutil.ignore_patterns("_core*.so", "__pycache__")
    shutil.copytree(ROOT / "mirror_rt", tmp_path / "mirror_rt", ignore=without)
    isolated = [sys.executable, "-S"]  # an editable install would be found before the folder
    done = subprocess.run(
        [*isolated, *line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "is the source folder of mirror_rt" in last
    assert "start Python in another folder" in last
    assert "pip install -e ." in last
