"""Describe folders of static encoders, which model2vec and sentence-transformers write.

A static encoder has a table of vectors in model.safetensors, and a tokenizer.json beside it. The
vector of a text is the mean of its tokens' vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirror_rt.bundle.declarations import MODULES, WEIGHTS, write_modules
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.manifest import MOST_TOKENS, Layout, Manifest, Precision
from mirror_rt.bundle.plain_manifest import derived_manifest
from mirror_rt.errors import BundleError
from mirror_rt.io.atomic import write_json
from mirror_rt.io.tensors import tensor_shapes

TABLE = WEIGHTS
MODULE = "StaticEmbedding"
# The files of a folder beside its JSON files.
FILES = (TABLE, f"*/{TABLE}", f"*/{Layout.tokenizer}")
# The names of the table: model2vec's, and sentence-transformers'.
TABLE_NAMES = ("embeddings", "embedding.weight")
_PRECISIONS: dict[str, Precision] = {"F16": "fp16", "BF16": "bf16", "I8": "int8"}


def describe_static(described: ModelDescription) -> Manifest:
    """Return the manifest of a static encoder, by the declarations in its files.

    model2vec leaves unknown tokens out, and sentence-transformers does not: the poolings
    `mean-without-special` and `mean`. Neither has a limit of tokens.
    """
    described.check_kind("SentenceTransformer")
    folder, names = described.folder, described.names
    place = folder
    if described.is_model2vec:
        normalize = described.config.get("normalize") is True
    else:
        if names not in ([MODULE], [MODULE, "Normalize"]):
            raise BundleError(
                f"{folder / MODULES} declares {', '.join(names)}: of static encoders, a {MODULE} "
                "and a Normalize can be run"
            )
        if described.truncate_dim is not None:
            raise BundleError(f"{folder} declares truncate_dim: give it to encode instead")
        place, normalize = described.modules[0].folder, len(names) == 2
    for file in (place / TABLE, place / Layout.tokenizer):
        if not file.is_file():
            raise BundleError(f"{folder} is a static encoder without the file {file}")
    kind, shape = table_of(place / TABLE)
    values: dict[str, Any] = {
        "dimension": shape[-1],
        "max_length": MOST_TOKENS,
        "pad_id": 0,
        "pooling": "mean-without-special" if described.is_model2vec else "mean",
        "normalize": normalize,
        "variants": {
            "fp32": {
                "file": (place / TABLE).relative_to(folder).as_posix(),
                "precision": _PRECISIONS.get(kind, "fp32"),
                "target": "static",
            }
        },
        "format": "static files",
    }
    return derived_manifest(described, **values)


def table_of(path: Path) -> tuple[str, list[int]]:
    """Return the type and the shape of the table in a file; BundleError if it has none."""
    shapes = tensor_shapes(path)
    for name in TABLE_NAMES:
        kind, shape = shapes.get(name, ("", []))
        if len(shape) == 2 and min(shape) > 0:
            return kind, shape
    raise BundleError(f"{path} has no table of vectors ({' or '.join(TABLE_NAMES)})")


def declare_static(folder: Path, dimension: int) -> None:
    """Write the declarations of a static encoder that model2vec and sentence-transformers read."""
    write_json(folder / "config.json", {
        "model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": dimension,
        "normalize": True, "embedding_dtype": "float32",
    })  # fmt: skip
    write_modules(folder, {".": MODULE, "1_Normalize": "Normalize"})
