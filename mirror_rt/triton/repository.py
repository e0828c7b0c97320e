"""Write a bundle as a model repository of NVIDIA Triton: graph, tokenizer, and their ensemble."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mirror_rt.bundle.manifest import Layout, Manifest, Variant
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.bundle.resolve import name_of
from mirror_rt.errors import ConfigError
from mirror_rt.inference.providers import CPU
from mirror_rt.inference.session import import_onnxruntime
from mirror_rt.io.atomic import new_folder
from mirror_rt.pipeline.prompts import Prompts
from mirror_rt.schema import check_rules, least

_TYPES = {
    "tensor(int64)": "TYPE_INT64",
    "tensor(int32)": "TYPE_INT32",
    "tensor(float)": "TYPE_FP32",
    "tensor(float16)": "TYPE_FP16",
}
_Tensors = list[dict[str, Any]]  # inputs or outputs, without the dimension of the batch
_UNIT, _POOLED = "sentence_embedding", "pooled_embedding"
# Fields of Triton's schema: keywords have no quotes, and the entries of a map are blocks.
_KEYWORDS, _MAPS = {"data_type", "kind"}, {"parameters", "input_map", "output_map"}


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """The options for writing a repository.

    Attributes:
        name: of the model that takes texts; by default the folder's name. Of a pack, the
            prefix of the names of its bundles.
        variant: graph of the bundle; by default `fp32`, or its first.
        max_batch_size: most texts of a request, and of a run.
        on_too_long: the treatment of a text of too many tokens.
    """

    name: str | None = None
    variant: str | None = None
    max_batch_size: Annotated[int, least(1)] = 64
    on_too_long: Literal["error", "truncate"] = "error"

    def __post_init__(self) -> None:
        check_rules(self)
        if self.on_too_long not in ("error", "truncate"):
            raise ConfigError(
                field="on_too_long", expected="error or truncate", value=self.on_too_long
            )
        if self.name is not None and (not self.name or "/" in self.name or self.name[0] == "."):
            raise ConfigError(field="name", expected="that of a folder", value=self.name)


def write_repository(
    source: Path, out: Path, config: RepositoryConfig | None = None, *, overwrite: bool = False
) -> list[str]:
    """Write a model repository, whole or not at all.

    For each bundle there are three models: NAME takes `text` (BYTES [n, 1]) and gives `embedding`
    (FP32 [n, D]), an ensemble of NAME-tokenizer (Python backend) and NAME-graph (onnxruntime
    backend, dynamic batching).

    Args:
        source: folder of a bundle or of a pack.
        out: folder to write.
        config: names, graph and limits; by default the defaults.
        overwrite: replace `out` if it exists.

    Returns:
        The names of the models that take texts.
    """
    config = config or RepositoryConfig()
    name = config.name or name_of(source)
    bundles = {name: source}
    if is_pack(source):
        entries = PackIndex.read(source).bundles
        bundles = {f"{name}-{key}": source / entry.path for key, entry in entries.items()}
    with new_folder(out, overwrite=overwrite) as repository:
        for model, folder in bundles.items():
            _write_models(repository, model, folder, config)
    return list(bundles)


def _write_models(repository: Path, name: str, folder: Path, config: RepositoryConfig) -> None:
    manifest = Manifest.read(folder)
    variant = manifest.variant(config.variant)
    if manifest.is_static:
        raise ConfigError(f"{folder} is a static encoder: it has no graph that Triton could run")
    if "PackedMultiHeadAttention" in variant.graph.get("fused", {}):
        raise ConfigError(
            f"variant {config.variant!r} of {folder} takes the places of tokens in the whole "
            "batch, which Triton cannot join with those of another request: choose fp16 or fp32"
        )
    manifest.verify(folder, manifest.files_for([variant]))
    inputs, outputs = _signature(folder, manifest)
    beside = (variant.file, variant.weights, f"{variant.file}_data")
    files = [folder / file for file in beside if file in manifest.files]
    models = {
        f"{name}-graph": (files, _graph_config(variant, inputs, outputs)),
        f"{name}-tokenizer": (
            [folder / Layout.tokenizer],
            _tokenizer_config(manifest, inputs, config.on_too_long),
        ),
        name: ([], _ensemble_config(name, manifest, [str(each["name"]) for each in inputs])),
    }
    for model, (contents, values) in models.items():
        version = repository / model / "1"
        version.mkdir(parents=True)
        for file in contents:
            shutil.copyfile(file, version / file.name)
        values = {"name": model, "max_batch_size": config.max_batch_size} | values
        text = "\n".join(_lines(values)) + "\n"
        (repository / model / "config.pbtxt").write_text(text, encoding="ascii")
    backend = Path(__file__).with_name("backend.py")
    shutil.copyfile(backend, repository / f"{name}-tokenizer" / "1" / "model.py")


def _graph_config(variant: Variant, inputs: _Tensors, outputs: _Tensors) -> dict[str, Any]:
    values = {
        "backend": "onnxruntime",
        "default_model_filename": Path(variant.file).name,
        "input": inputs,
        "output": outputs,
        "dynamic_batching": {},
    }
    if variant.target == "cuda":
        values["instance_group"] = [{"kind": "KIND_GPU"}]
    return values


def _tokenizer_config(manifest: Manifest, inputs: _Tensors, on_too_long: str) -> dict[str, Any]:
    prompts = Prompts(manifest.prompts, manifest.default_prompt_name)
    parameters = {
        "max_length": manifest.max_length,
        "pad_id": manifest.pad_id,
        "pad_to": manifest.pad_to,
        "prompt": prompts.choose(None, None),
        "on_too_long": on_too_long,
    }
    return {
        "backend": "python",
        "input": [_tensor("text", "TYPE_STRING", [1])],
        "output": inputs,
        "parameters": {
            key: {"string_value": str(v)} for key, v in parameters.items() if v is not None
        },
        "instance_group": [{"kind": "KIND_CPU"}],
    }


def _ensemble_config(name: str, manifest: Manifest, inputs: list[str]) -> dict[str, Any]:
    tokens = {key: key for key in inputs}
    embedding = _UNIT if manifest.normalize else _POOLED
    steps = [(f"{name}-tokenizer", {"text": "text"}, tokens),
             (f"{name}-graph", tokens, {embedding: "embedding"})]  # fmt: skip
    return {
        "platform": "ensemble",
        "input": [_tensor("text", "TYPE_STRING", [1])],
        "output": [_tensor("embedding", "TYPE_FP32", [manifest.dimension])],
        "ensemble_scheduling": {
            "step": [
                {"model_name": model, "model_version": -1,
                 "input_map": taken, "output_map": given}
                for model, taken, given in steps
            ]
        },
    }  # fmt: skip


def _tensor(name: str, kind: str, dims: list[int]) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": dims}


def _signature(folder: Path, manifest: Manifest) -> tuple[_Tensors, _Tensors]:
    """Return the inputs and outputs of a bundle's graphs.

    They are the same for all graphs. A graph for NVIDIA cards cannot be opened without a card, so
    one of the others is read.
    """
    graphs = [folder / v.file for v in manifest.variants.values() if v.target == "cpu"]
    graph = next((path for path in graphs if path.is_file()), None)
    if graph is None:
        raise ConfigError(
            f"{folder} has graphs for NVIDIA cards alone: export it with --target cpu,cuda, so "
            "that its inputs can be read here"
        )
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(graph), options, providers=[CPU], enable_fallback=0)
    inputs, outputs = (
        [
            _tensor(node.name, _TYPES[node.type],
                    [size if isinstance(size, int) else -1 for size in node.shape[1:]])
            for node in nodes
        ]
        for nodes in (session.get_inputs(), session.get_outputs())
    )  # fmt: skip
    return inputs, outputs


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of values in the text format of Protocol Buffers."""
    for name, value in values.items():
        if name in _MAPS:
            value = [{"key": key, "value": entry} for key, entry in value.items()]
        entries = [value] if isinstance(value, dict) else value
        if isinstance(entries, list) and entries and isinstance(entries[0], dict):
            for entry in entries:
                yield from (f"{name} {{", *(f"  {line}" for line in _lines(entry)), "}")
        elif isinstance(value, list):
            yield f"{name}: [{', '.join(map(str, value))}]"
        else:
            quoted = isinstance(value, str) and name not in _KEYWORDS
            yield f"{name}: {_quote(value) if quoted else value}"


def _quote(text: str) -> str:
    plain = range(32, 127)
    return '"' + "".join(
        chr(byte) if byte in plain and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode()
    ) + '"'  # fmt: skip
