"""Make the environments and the command lines of benchmarks/serve_rivals.py.

An environment here adds a web framework to one of benchmarks/encode_setup.py, which has the
library; so the library is installed once for both benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from encode_setup import ENVIRONMENTS as BELOW
from encode_setup import Environment, model_of, python_of

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
}  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """A server that takes part.

    Attributes:
        environment: key of `ENVIRONMENTS`.
        kind: kind of model, as `encode_setup.model_of` knows it.
        arguments: arguments of Python; {model}, {port} and {here} are filled in.
    """

    environment: str
    kind: str
    arguments: tuple[str, ...]

    def line(self, cache: Path, bundle: Path | None, port: int) -> tuple[list[str], Path]:
        """Return the command line, and the folder of the model."""
        model = Path(model_of(cache, self.kind, bundle))
        values = {"model": model, "port": port, "here": HERE}
        python = python_of(cache, self.environment, BELOW | ENVIRONMENTS)
        return [str(python), *(part.format(**values) for part in self.arguments)], model


def _ours(variant: str) -> Contender:
    arguments = ("-m", "mirror_rt.cli", "serve", "{model}", "--variant", variant)
    return Contender("serve-mirror-rt", "bundle", (*arguments, "--port", "{port}"))


def _rival(environment: str, kind: str, module: str) -> Contender:
    arguments = ("-m", "uvicorn", f"{module}:app", "--app-dir", "{here}", "--port", "{port}")
    return Contender(environment, kind, arguments)


OURS, INT8 = "mirror-rt serve, fp32", "mirror-rt serve, int8"
ST, FASTEMBED = "FastAPI + sentence-transformers", "FastAPI + fastembed"
CONTENDERS = {
    OURS: _ours("fp32"),
    INT8: _ours("int8"),
    ST: _rival("serve-sentence-transformers", "transformers", "serve_sentence_transformers"),
    FASTEMBED: _rival("serve-fastembed", "onnx", "serve_fastembed"),
}
