"""Make an environment for each tool that loads a bundle, library of an adapter, and client.

`MIRROR_RT_INTEROP=1 pytest -m interop` makes the missing environments once, from pinned packages
(8 GB, most of it PyTorch, in $MIRROR_RT_INTEROP_CACHE or ~/.cache/mirror_rt/interop). Without the
variable, only existing environments are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from paths import ROOT

HERE = Path(__file__).parent


def cache_folder() -> Path:
    """Return the folder of all environments."""
    return Path(
        os.environ.get("MIRROR_RT_INTEROP_CACHE", "~/.cache/mirror_rt/interop")
    ).expanduser()


@dataclass(frozen=True)
class Tool:
    """A client script, and the packages that it needs."""

    script: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256(json.dumps([sys.version_info[:2], self.packages]).encode())
        name = Path(self.script).stem.removeprefix("with_").removeprefix("test_")
        return cache_folder() / f"{name}-{digest.hexdigest()[:8]}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def made(self) -> bool:
        return (self.folder / "made").is_file()

    def require(self) -> None:
        """Make the environment where that was asked for; else skip the test that lacks it."""
        if self.made:
            return
        if os.environ.get("MIRROR_RT_INTEROP") != "1":
            pytest.skip(f"no environment for {self.script}: MIRROR_RT_INTEROP=1 makes it")
        self.make()

    def make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.script.endswith(".mjs"):
            # Without scripts: onnxruntime-node contains its CPU library, but would fetch CUDA's.
            _run(
                "npm", "install", "--ignore-scripts", "--no-audit", *self.packages, cwd=self.folder
            )
        else:
            _run(sys.executable, "-m", "venv", self.folder)
            _run(self.python, "-m", "pip", "install", "--quiet", *self.packages)
        (self.folder / "made").touch()

    def run(self, *arguments: object) -> None:
        """Run the script, without access to a model hub."""
        node = self.script.endswith(".mjs")
        program = "node" if node else self.python
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONPATH", None)
        _run(program, HERE / self.script, *arguments, cwd=self.folder, env=environment)


# optimum-onnx requires transformers before 4.58, and sentence-transformers 6 a later version.
_OPTIMUM = ("optimum-onnx[onnxruntime]==0.1.0", "transformers==4.57.6", "torch==2.13.0")
TOOLS = {
    "onnxruntime": Tool(
        "with_onnxruntime.py", ("onnxruntime==1.31.1", "tokenizers==0.23.3", "numpy==2.4.6")
    ),
    "fastembed": Tool("with_fastembed.py", ("fastembed==0.9.1", "onnxruntime==1.31.1")),
    "optimum": Tool("with_optimum.py", _OPTIMUM),
    "sentence-transformers": Tool(
        "with_sentence_transformers.py", ("sentence-transformers==5.7.0", *_OPTIMUM)
    ),
    "transformers.js": Tool("with_transformers_js.mjs", ("@huggingface/transformers@4.3.1",)),
}

_RUN_TIME = ("onnxruntime==1.31.1", "tokenizers==0.23.3", "numpy==2.4.6", "pytest==9.2.0")
ADAPTERS = {  # scikit-learn is in the main environment
    name: Tool(f"test_{name}.py", (*_RUN_TIME, *packages))
    for name, packages in {
        "langchain": ("langchain-core==1.7.2",),
        "llamaindex": ("llama-index-core==0.14.25",),
        "haystack": ("haystack-ai==3.4.0",),
        "chroma": ("chromadb==1.5.9",),
        "qdrant": ("qdrant-client==1.20.0",),
        "lancedb": ("lancedb==0.40.0",),
        "ray": (
            "ray[data]==2.60.0",
            "pyarrow==26.0.1",
            "moto[s3]==5.2.5",  # an object store; its server needs Flask
            "flask==3.1.3",
            "flask-cors==6.0.5",
        ),
        "ray_tune": (
            "ray==2.60.0",
            "pyarrow==26.0.1",
            "torch==2.13.0",
            "transformers==5.23.0",
            "tqdm==4.70.1",
        ),
        "spark": ("pyspark==4.3.0", "pyarrow==26.0.1", "pandas==3.1.1"),
        "daft": ("daft==0.7.26", "pyarrow==25.0.1"),
        "ray_serve": (
            "ray[serve]==2.60.0",
            "starlette==1.10.0",
            "uvicorn==0.54.0",
            "httptools==0.9.0",
            "msgspec==0.22.0",
            "orjson==3.13.0",
            "prometheus-client==0.26.0",
        ),
        "mteb": ("mteb==2.26.24", "torch==2.13.0"),
    }.items()
}

# Clients of servers; two of them want older versions of what the others need.
_COUNTED = ROOT / "benchmarks" / "serve" / "other_clients"
CLIENTS = {
    name: Tool(f"{_COUNTED}.{'mjs' if name == 'npm' else 'py'}", packages)
    for name, packages in {
        "npm": ("openai@6.49.0", "cohere-ai@8.1.0", "voyageai@0.4.0", "ai@6.0.326",
                "@huggingface/inference@4.13.30", "@mixedbread/sdk@0.78.0",
                "@langchain/openai@1.5.8", "@langchain/cohere@1.0.5", "@langchain/core@1.4.0",
                "@ai-sdk/openai-compatible@2.0.92", "@ai-sdk/cohere@3.0.63"),
        "infinity": ("infinity_client==0.0.78",),
        "pip": (
            "openai==3.57.0", "cohere==5.21.1", "voyageai==0.3.7", "mixedbread==0.54.0",
            "huggingface_hub==1.33.0", "litellm==1.83.0", "rerankers==0.10.0",
            "pydantic-ai-slim[openai,cohere,voyageai]==2.68.0", "xinference-client==4.1.0",
            "tritonclient[http]==2.73.0", "langchain-openai==1.7.4", "langchain-cohere==0.6.0",
            "langchain-voyageai==0.3.3", "langchain-nvidia-ai-endpoints==1.5.0",
            *(f"llama-index-embeddings-{one}" for one in (
                "openai-like==0.4.0", "cohere==0.9.0", "jinaai==0.7.0", "nvidia==0.6.0")),
            *(f"llama-index-postprocessor-{one}" for one in (
                "cohere-rerank==0.10.0", "jinaai-rerank==0.6.0", "nvidia-rerank==0.7.0",
                "tei-rerank==0.6.0")),
            "cohere-haystack==11.0.0", "jina-haystack==2.0.1", "nvidia-haystack==3.0.0",
            "huggingface-api-haystack==3.1.0",
        ),
        "llama-tei": ("llama-index-embeddings-text-embeddings-inference==0.6.0",),
    }.items()
}  # fmt: skip


def _run(*line: object, **options: object) -> None:
    done = subprocess.run(
        list(map(str, line)), capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        raise RuntimeError(f"{line} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
