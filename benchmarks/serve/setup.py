"""Make the environments and the command lines of benchmarks/serve/rivals.py.

An environment here adds a web framework to one of benchmarks/encode/setup.py, which has the
library; so the library is installed once for both benchmarks.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from encode.setup import ENVIRONMENTS as BELOW
from encode.setup import Environment, change_json, model_of, python_of

HERE = Path(__file__).resolve().parent
WEB = ("fastapi==0.163.2", "uvicorn[standard]==0.54.0")
ENVIRONMENTS = {
    "serve-mirror-rt": Environment(
        ("starlette==1.10.0", "uvicorn==0.54.0", "httptools==0.9.0", "uvloop==0.23.0",
         "msgspec==0.22.0", "orjson==3.13.0", "prometheus-client==0.26.0"),
        below="mirror-rt",
    ),
    "serve-sentence-transformers": Environment(WEB, below="st-torch"),
    "serve-fastembed": Environment(WEB, below="fastembed"),
    "serve-infinity": Environment(
        ("infinity_emb[server,torch,optimum]==0.0.78", "torch==2.13.0", "click==8.1.8")
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """A server that takes part.

    Attributes:
        environment: key of `ENVIRONMENTS`.
        kind: kind of model, as `encode.setup.model_of` knows it.
        arguments: arguments of Python; {model}, {port} and {here} are filled in.
        path: path of its requests.
        key: key of the texts in a request.
    """

    environment: str
    kind: str
    arguments: tuple[str, ...]
    path: str = "/embed"
    key: str = "inputs"

    def line(self, cache: Path, bundle: Path | None, port: int) -> tuple[list[str], Path]:
        """Return the command line, and the folder of the model."""
        model = Path(model_of(cache, self.kind.removesuffix("-512"), bundle))
        if self.kind.endswith("-512"):
            model = copy_with_512_tokens(cache, model)
        values = {"model": model, "port": port, "here": HERE}
        python = python_of(cache, self.environment, BELOW | ENVIRONMENTS)
        return [str(python), *(part.format(**values) for part in self.arguments)], model


def copy_with_512_tokens(cache: Path, model: Path) -> Path:
    """Copy a model of sentence-transformers once, with the limit that the others have."""
    folder = cache / "transformers-512"
    shutil.copytree(model, folder, dirs_exist_ok=True)
    change_json(folder / "sentence_bert_config.json", max_seq_length=512)
    return folder


def _ours(variant: str, providers: str = "auto") -> Contender:
    arguments = ("-m", "mirror_rt.cli", "serve", "{model}", "--variant", variant)
    arguments += ("--providers", providers, "--port", "{port}")
    return Contender("serve-mirror-rt", "bundle", arguments)


def _rival(environment: str, kind: str, module: str) -> Contender:
    arguments = ("-m", "uvicorn", f"{module}:app", "--app-dir", "{here}", "--port", "{port}")
    return Contender(environment, kind, arguments)


def _infinity() -> Contender:
    start = "from infinity_emb.cli import cli; cli()"
    arguments = ("-c", start, "v2", "--model-id", "{model}", "--device", "cpu")
    arguments += ("--no-bettertransformer", "--port", "{port}")
    return Contender("serve-infinity", "transformers-512", arguments, "/embeddings", "input")


OURS, INT8 = "mirror-rt serve, fp32", "mirror-rt serve, int8"
BF16, ORT = "mirror-rt serve, bf16", "mirror-rt serve, fp32 on onnxruntime"
ST, FASTEMBED = "FastAPI + sentence-transformers", "FastAPI + fastembed"
INFINITY = "infinity"
CONTENDERS = {
    OURS: _ours("fp32"),
    BF16: _ours("bf16", "native"),
    INT8: _ours("int8"),
    ORT: _ours("fp32", "cpu"),
    ST: _rival("serve-sentence-transformers", "transformers", "sentence_transformers_app"),
    FASTEMBED: _rival("serve-fastembed", "onnx", "fastembed_app"),
    INFINITY: _infinity(),
}
