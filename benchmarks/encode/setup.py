"""Make the environments and the models of benchmarks/encode/compare.py once, and keep them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")
# Variables of a process that must see the packages of its environment alone.
OWN_PACKAGES = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
# Flag in /proc/cpuinfo -> class of the processor, the most capable first.
CLASSES = {
    "amx_tile": "AMX",
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX-512 VNNI",
    "avx2": "AVX2",
}

PROJECT, ORT = "PROJECT", "onnxruntime==1.31.1"
LLAMA_CPP = "llama-cpp-python==0.3.36"
GGUF = ("f32", "f16", "q8_0")  # precisions of its files


class Environment(NamedTuple):
    """An environment of Python.

    Attributes:
        packages: pip's requirements; PROJECT stands for the wheel of this clone, and may have an
            extra of it in brackets.
        below: another environment, whose packages this one has, too.
    """

    packages: tuple[str, ...]
    below: str | None = None


OURS = Environment((PROJECT, "numpy==2.4.6", "tokenizers==0.23.3", ORT))
ENVIRONMENTS = {
    "driver": Environment(
        (f"{PROJECT}[export]", ORT, "onnx==1.23.2", "onnxscript==0.7.2", "matplotlib==3.11.2"),
        below="st-torch",
    ),
    "mirror-rt": OURS,
    "mirror-rt openvino": Environment((f"{PROJECT}[openvino]",), below="mirror-rt"),
    "sketch": Environment(OURS.packages[1:]),
    "st-torch": Environment(
        ("sentence-transformers==6.2.0", "transformers==5.23.0", "torch==2.13.0")
    ),
    # The last version whose ONNX and OpenVINO backends can be installed.
    "st-onnx": Environment(("sentence-transformers[onnx]==5.7.0", "torch==2.13.0", ORT)),
    "st-openvino": Environment(("sentence-transformers[openvino]==5.7.0", "torch==2.13.0")),
    "fastembed": Environment(("fastembed==0.9.1", ORT)),
    "light-embed": Environment(("light-embed==1.0.9", ORT)),
    "ctranslate2": Environment(("ctranslate2==4.8.5", "tokenizers==0.23.3")),
    "ctranslate2 converter": Environment(("ctranslate2==4.8.5",), below="st-torch"),
    # Built here, for the instructions of this processor.
    "llama.cpp": Environment((LLAMA_CPP, "numpy==2.4.6")),
}


class Contender(NamedTuple):
    """A contender.

    Attributes:
        environment: key of `ENVIRONMENTS`.
        model: kind of model, as `model_of` knows it.
        exact: whether it computes in float32, so that every vector must agree; else the mean.
    """

    environment: str
    model: str
    exact: bool = True


ENGINES = {"openvino": "mirror-rt openvino", "native": "mirror-rt"}
CONTENDERS = {
    "mirror-rt fp32": Contender("mirror-rt", "bundle"),
    "mirror-rt int8": Contender("mirror-rt", "bundle", exact=False),
    **{
        f"mirror-rt {engine} {precision}": Contender(environment, "bundle", precision == "fp32")
        for engine, environment in ENGINES.items()
        for precision in ("fp32", "bf16", "int8")
        if (engine, precision) != ("openvino", "int8")  # made of fp32, where it has no int8
    },
    "onnxruntime sketch": Contender("sketch", "bundle"),
    "sentence-transformers torch": Contender("st-torch", "transformers"),
    "sentence-transformers bfloat16": Contender("st-torch", "transformers", exact=False),
    "sentence-transformers onnx": Contender("st-onnx", "onnx"),
    # OpenVINO computes in bfloat16 where the processor does.
    "sentence-transformers openvino": Contender("st-openvino", "openvino", exact=False),
    "fastembed": Contender("fastembed", "onnx"),
    "light-embed": Contender("light-embed", "onnx"),
    "CTranslate2 float32": Contender("ctranslate2", "ctranslate2"),
    "CTranslate2 int8": Contender("ctranslate2", "ctranslate2", exact=False),
    # No vector must agree, but the mean: its own tokenizer cuts words in Devanagari differently.
    **{f"llama.cpp {name}": Contender("llama.cpp", "gguf", exact=False) for name in GGUF},
}


class LeftOutError(Exception):
    """A contender cannot take part; the message says why."""


def call(line, **options):
    done = subprocess.run(line, capture_output=True, encoding="utf-8", **options)
    if done.returncode:
        lines = [text for text in (done.stderr or done.stdout).splitlines() if text.strip()]
        raise LeftOutError(f"{Path(line[0]).name} {' '.join(line[1:4])}: {lines[-1:]}")
    return done.stdout


def python_of(cache, name, environments=ENVIRONMENTS):
    """Return the Python of an environment, which is made anew if its packages have changed."""
    environment = environments[name]
    wanted = "\n".join((environment.below or "", *map(built_from, environment.packages)))
    below = environment.below and python_of(cache, environment.below, environments)
    folder = cache / "environments" / name.replace(" ", "-")
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"  environment {name}: {', '.join(environment.packages)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(folder)])
    if below:
        (packages_folder(folder) / "below.pth").write_text(
            f"{packages_folder(below.parents[1])}\n", encoding="utf-8"
        )
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    call([*pip, *(
        package.replace(PROJECT, str(project_wheel(cache, python))) if PROJECT in package
        else package for package in environment.packages
    )])  # fmt: skip
    stamp.write_text(wanted, encoding="utf-8")
    return python


def built_from(package):
    """Return a package; the project with its sources and the requirements of its extra, if any.

    Raises:
        LeftOutError: this version of the project has no such extra.
    """
    if not package.startswith(PROJECT):
        return package
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, extra = about["optional-dependencies"], package.removeprefix(PROJECT).strip("[]")
    if extra and extra not in extras:
        raise LeftOutError(f"not installed: this version of mirror-rt has no extra {extra!r}")
    return f"mirror-rt {fingerprint()} {extras.get(extra, '')}"


def project_wheel(cache, python):
    """Build the wheel of this clone once; return its path."""
    folder = cache / "wheels" / fingerprint()
    if not folder.is_dir():
        print("  building the wheel of this clone", flush=True)
        made = folder.with_name("making")
        shutil.rmtree(made, ignore_errors=True)
        call([str(python), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(made),
              str(ROOT)])  # fmt: skip
        made.rename(folder)
    return next(folder.glob("*.whl"))


def packages_folder(environment):
    """Return the folder of an environment's packages."""
    places = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", "venv", places))


def continue_in(cache, name):
    """Run the script of this process in an environment, unless it runs there already.

    The environment has a wheel of this clone, so neither its source folder nor another version that
    is installed can take its place.
    """
    python = python_of(cache, name)
    if Path(sys.prefix).resolve() != python.parents[1].resolve():
        os.execve(python, [str(python), *sys.argv], os.environ | OWN_PACKAGES)


def processor_class():
    """Return the widest instructions for neural networks that this processor has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])
    return next((name for flag, name in CLASSES.items() if flag in flags), platform.machine())


def fingerprint():
    """Return a fingerprint of the files that the wheel is built from."""
    digest = hashlib.sha256()
    paths = [ROOT / "CMakeLists.txt", ROOT / "pyproject.toml"]
    for folder in ("mirror_rt", "csrc", "cmake", "train", "export"):
        paths += sorted((ROOT / folder).rglob("*"))
    for path in paths:
        if path.suffix in (".py", ".cpp", ".h", ".cu", ".cuh", ".cmake", ".txt", ".toml"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def model_of(cache, kind, bundle):
    """Return a model's folder: `bundle`, `transformers`, `gguf`, or, with token vectors as output,
    `onnx`, `openvino` or `ctranslate2`.
    """
    if kind == "bundle":
        return bundle or make_bundle(cache)
    load = "from mirror_train.model.model_folder import DEFAULT_MODEL, resolve_model"
    code = f"{load}; print(resolve_model(DEFAULT_MODEL)[0])"
    source = Path(call_driver(cache, "-c", code).splitlines()[-1])
    return source if kind == "transformers" else make_once(cache, kind, source)


def call_driver(cache, *line):
    """Run Python with the wheel of this clone, in a folder that cannot hide it."""
    python = str(python_of(cache, "driver"))
    return call([python, *line], cwd=cache, env=os.environ | OWN_PACKAGES)


def make_bundle(cache):
    folder = cache / "bundle"
    if not folder.is_dir():
        print("  exporting the bundle", flush=True)
        options = ("--out", str(folder), "--precision", "fp32,int8", "--max-length", "512")
        call_driver(cache, "-m", "mirror_rt.cli", "export", "all-MiniLM-L6-v2", *options)
    return folder


def make_once(cache, kind, source):
    """Make the model of a kind from that of transformers, whole or not at all, and keep it."""
    folder, made = cache / kind, cache / f"{kind}.making"
    if not folder.is_dir():
        print(f"  making the {kind} model of the peers", flush=True)
        shutil.rmtree(made, ignore_errors=True)
        {"ctranslate2": convert, "gguf": convert_to_gguf}.get(kind, export)(cache, source, made)
        made.rename(folder)
    return folder


def call_offline(cache, environment, *line):
    """Run the Python of an environment, which sees its own packages alone and no model hub."""
    python = str(python_of(cache, environment))
    call([python, *map(str, line)], cwd=cache,
         env=os.environ | OWN_PACKAGES | {"HF_HUB_OFFLINE": "1"})  # fmt: skip


def export(cache, source, made):
    """Make the graph that sentence-transformers exports for the backend `made` is named after; its
    limit is 512 tokens, like ours.
    """
    code = (
        "import sys; from sentence_transformers import SentenceTransformer as S; "
        "S(sys.argv[1], backend=sys.argv[3], device='cpu').save_pretrained(sys.argv[2])"
    )
    call_offline(cache, f"st-{made.stem}", "-c", code, source, made, made.stem)
    # fastembed and light-embed read two files that newer versions of transformers do not write.
    for name in ("special_tokens_map.json", "config.json"):
        if not (made / name).is_file():
            shutil.copy(source / name, made / name)
    change_json(made / "tokenizer_config.json", model_max_length=512, max_length=512)
    change_json(made / "sentence_bert_config.json", max_seq_length=512)
    tokenizer = json.loads((made / "tokenizer.json").read_text(encoding="utf-8"))
    truncation = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    change_json(made / "tokenizer.json", truncation=(tokenizer["truncation"] or {}) | truncation)


def convert(cache, source, made):
    """Convert the model to CTranslate2's format."""
    code = (
        "import sys; from ctranslate2.converters import TransformersConverter as C; "
        "C(sys.argv[1], copy_files=['tokenizer.json']).convert(sys.argv[2])"
    )
    call_offline(cache, "ctranslate2 converter", "-c", code, source, made)


def convert_to_gguf(cache, source, made):
    """Convert the model to llama.cpp's format, by the script in the sources of its package."""
    call([str(python_of(cache, "llama.cpp")), "-m", "pip", "download", "--quiet", "--no-deps",
          "--no-binary", ":all:", "--dest", str(made), LLAMA_CPP])  # fmt: skip
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        archive.extractall(made, filter="data")
    script = next(made.glob("*/vendor/llama.cpp/convert_hf_to_gguf.py"))
    for precision in GGUF:
        out = made / f"{precision}.gguf"
        call_offline(cache, "st-torch", script, source, "--outtype", precision, "--outfile", out)
    shutil.rmtree(script.parents[2])


def change_json(path, **values):
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(content | values), encoding="utf-8")
