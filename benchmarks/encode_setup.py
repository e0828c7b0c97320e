"""Make the environments and the models of benchmarks/encode.py once, and keep them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("encode_worker.py")

ORT = "onnxruntime==1.31.1"
# The packages of each environment; PROJECT stands for the wheel of this clone.
ENVIRONMENTS = {
    "mirror-rt": ["PROJECT", "numpy==2.4.6", "tokenizers==0.23.3", ORT],
    "sketch": ["numpy==2.4.6", "tokenizers==0.23.3", ORT],
    "st-torch": ["sentence-transformers==6.2.0", "transformers==5.23.0", "torch==2.13.0"],
    # The last version with which its ONNX backend can be installed.
    "st-onnx": ["sentence-transformers[onnx]==5.7.0", "torch==2.13.0", ORT],
    "fastembed": ["fastembed==0.9.1", ORT],
    "light-embed": ["light-embed==1.0.9", ORT],
}
# name -> (environment, model)
CONTENDERS = {
    "mirror-rt fp32": ("mirror-rt", "bundle"),
    "mirror-rt int8": ("mirror-rt", "bundle"),
    "mirror-rt native fp32": ("mirror-rt", "bundle"),
    "mirror-rt native bf16": ("mirror-rt", "bundle"),
    "mirror-rt native int8": ("mirror-rt", "bundle"),
    "onnxruntime sketch": ("sketch", "bundle"),
    "sentence-transformers torch": ("st-torch", "transformers"),
    "sentence-transformers onnx": ("st-onnx", "onnx"),
    "fastembed": ("fastembed", "onnx"),
    "light-embed": ("light-embed", "onnx"),
}


class LeftOutError(Exception):
    """A contender cannot take part; the message says why."""


def call(line, **options):
    done = subprocess.run(line, capture_output=True, text=True, **options)
    if done.returncode:
        lines = [text for text in (done.stderr or done.stdout).splitlines() if text.strip()]
        raise LeftOutError(f"{Path(line[0]).name} {' '.join(line[1:4])}: {lines[-1:]}")
    return done.stdout


def python_of(cache, name):
    """Return the Python of an environment, which is made anew if its packages have changed."""
    folder = cache / "environments" / name
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    packages = list(ENVIRONMENTS[name])
    if packages[0] == "PROJECT":
        packages[0] = f"mirror-rt {fingerprint()}"
    wanted = "\n".join(packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"  environment {name}: {', '.join(packages)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(folder)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    call([*install, *(str(ROOT) if "mirror-rt " in name else name for name in packages)])
    stamp.write_text(wanted)
    return python


def fingerprint():
    """Return a fingerprint of the files that the wheel is built from."""
    digest = hashlib.sha256()
    for folder in ("mirror_rt", "csrc", "train", "export"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cpp", ".h", ".cu", ".cuh", ".toml"):
                digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def model_of(cache, kind, bundle):
    """Return a model's folder: `bundle`, `transformers`, or `onnx` with token vectors as output."""
    if kind == "bundle":
        return bundle or make_bundle(cache)
    from mirror_train.model.model_folder import default_model_folder

    source = default_model_folder()
    return source if kind == "transformers" else make_onnx(cache, source)


def make_bundle(cache):
    folder = cache / "bundle"
    if not folder.is_dir():
        print("  exporting the bundle", flush=True)
        call([sys.executable, "-m", "mirror_rt.cli", "export", "all-MiniLM-L6-v2",
              "--out", str(folder), *export_options()])  # fmt: skip
    return folder


def export_options():
    """Return the options for an int8 graph, if this version can export one."""
    help_text = call([sys.executable, "-m", "mirror_rt.cli", "export", "--help"])
    return ["--precision", "fp32,int8"] if "--precision" in help_text else []


def make_onnx(cache, source):
    """Make the graph that sentence-transformers exports; its limit is 512 tokens, like ours."""
    folder = cache / "onnx"
    if folder.is_dir():
        return folder
    print("  exporting the graph of the peers", flush=True)
    made = cache / "onnx.making"
    shutil.rmtree(made, ignore_errors=True)
    code = (
        "import sys; from sentence_transformers import SentenceTransformer as S; "
        "S(sys.argv[1], backend='onnx', device='cpu').save_pretrained(sys.argv[2])"
    )
    call([str(python_of(cache, "st-onnx")), "-c", code, str(source), str(made)],
         env=os.environ | {"HF_HUB_OFFLINE": "1"})  # fmt: skip
    # fastembed and light-embed read two files that newer versions of transformers do not write.
    for name in ("special_tokens_map.json", "config.json"):
        if not (made / name).is_file():
            shutil.copy(source / name, made / name)
    change_json(made / "tokenizer_config.json", model_max_length=512, max_length=512)
    change_json(made / "sentence_bert_config.json", max_seq_length=512)
    tokenizer = json.loads((made / "tokenizer.json").read_text())
    truncation = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    change_json(made / "tokenizer.json", truncation=(tokenizer["truncation"] or {}) | truncation)
    made.rename(folder)
    return folder


def change_json(path, **values):
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | values))
