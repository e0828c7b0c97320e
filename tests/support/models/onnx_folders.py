"""The files of a bundle as others publish a model as ONNX files: without a manifest."""

import shutil
from collections.abc import Collection
from pathlib import Path

DESCRIPTIONS = ("tokenizer.json", "tokenizer_config.json", "config.json")
MODULES = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
           "config_sentence_transformers.json")  # fmt: skip


def publish(
    bundle: Path,
    folder: Path,
    graph: str = "onnx/model.onnx",
    *,
    modules: bool = True,
    outputs: Collection[str] = ("last_hidden_state",),
    weights: str | None = None,
) -> Path:
    """Write them over the folder; with the weights in a file of that name beside the graph."""
    import onnx

    shutil.rmtree(folder, ignore_errors=True)
    for name in (*DESCRIPTIONS, *(MODULES if modules else ())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(bundle / name, folder / name)
    model = onnx.load(bundle / "onnx/model.onnx")
    kept = [node for name in outputs for node in model.graph.output if node.name == name]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    (folder / graph).parent.mkdir(exist_ok=True)
    beside = {"save_as_external_data": True, "location": weights, "size_threshold": 8192}
    onnx.save(model, folder / graph, **(beside if weights else {}))
    return folder
