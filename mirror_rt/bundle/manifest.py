"""mirror.json: what a folder is, how it was made, and the hash of every file in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_type_hints

from mirror_rt.bundle.json_document import is_a, read_document, read_json
from mirror_rt.errors import BundleError, BundleIntegrityError
from mirror_rt.io.atomic import sha256

__all__ = [
    "FORMAT_VERSION",
    "FileRecord",
    "Format",
    "Layout",
    "Manifest",
    "Pooling",
    "PoolingMode",
    "Precision",
    "Target",
    "Variant",
    "declared_format",
    "record_files",
]

FORMAT_VERSION = 1

Pooling = Literal["cls", "mean", "mean-without-special", "mean-with-padding"]
# `Pooling` is what can be tuned; the rest comes with the models of others, under the names that
# sentence-transformers has for it.
PoolingMode = Pooling | Literal["max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Precision = Literal["fp32", "fp16", "int8"]
# `cpu` graphs run under every execution provider, `cuda` graphs under CUDA alone.
Target = Literal["cpu", "cuda"]
# A tuned Hugging Face folder, and what `export` makes of it; both hold a mirror.json.
Format = Literal["mirror_rt encoder", "mirror_rt bundle"]


_MAPPED = "_mapped.onnx"


class Layout:
    """Where a bundle keeps its files; the names are those that other tools look for."""

    manifest = "mirror.json"
    pack = "pack.json"  # of a folder of bundles
    card = "README.md"  # not among the hashed files: people edit it on the hub
    model = "onnx/model.onnx"
    tokenizer = "tokenizer.json"
    heads = "heads/heads.json"  # see mirror_rt.heads.task_heads; not every folder has it

    @staticmethod
    def mapped(graph: str) -> str:
        """Path of the same graph with its weights read in place from the file `graph`."""
        return graph.removesuffix(".onnx") + _MAPPED

    @staticmethod
    def is_mapped(graph: Path) -> bool:
        """Whether onnxruntime maps the weights of this graph, rather than read them."""
        return graph.name.endswith(_MAPPED)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size in bytes and SHA-256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the graphs of a bundle.

    Attributes:
        file: path inside the folder.
        precision: of its weights.
        target: where it runs.
        graph: nodes, fused operators, opset.
        parity: report of the comparison with PyTorch; None where it was not made.
        unchecked: why it was not made; None where it was.
        weights: path of the graph whose weights this one reads; None where it has its own.
    """

    file: str
    precision: Precision
    target: Target
    graph: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] | None = None
    unchecked: str | None = None
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of mirror.json, in a bundle and in the tuned folder it came from.

    Attributes:
        dimension: length of an embedding.
        max_length: most tokens of a text, special tokens included.
        pad_id: token id to pad with.
        pad_to: every text is padded to this many tokens (pooling `mean-with-padding` alone).
        pooling: how token vectors become one (see `PoolingMode`); several are joined by `+`.
        mask_token: the tokenizer's own, None where it has none.
        base_model: name and revision of the model that was tuned.
        recipe: every field of the recipe, None for a model that was not tuned here.
        data: source, SHA-256 and counts of the training data.
        training: seed, precision, steps, loss and speed of the run.
        normalize: whether vectors are of unit length unless asked otherwise.
        prompts: name -> text put before a text; `default_prompt_name` is used unless told.
        variants: name -> graph (`fp32`, `int8`, `fp16-cuda` ...); none in a tuned folder.
        files: path inside the folder -> FileRecord.
    """

    dimension: int
    max_length: int
    pad_id: int
    pooling: str
    pad_to: int | None = None
    mask_token: str | None = None
    language: str | None = None
    level: str | None = None
    base_model: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    normalize: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    variants: dict[str, Variant] = field(default_factory=dict)
    generator: str = ""
    created: str = ""
    files: dict[str, FileRecord] = field(default_factory=dict)
    format: Format = "mirror_rt bundle"
    format_version: int = FORMAT_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the format first."""
        values = dataclasses.asdict(self)
        head = {name: values.pop(name) for name in ("format", "format_version")}
        return head | values

    @classmethod
    def read(cls, folder: Path, expected: Format = "mirror_rt bundle") -> Manifest:
        """Read and check `folder`/mirror.json.

        Raises:
            BundleError: no such folder or manifest, one of another format than `expected`, or a
                field is missing or of a wrong type.
            BundleVersionError: the format version is newer than this one.
        """
        path = folder / Layout.manifest
        values = read_document(
            path, noun="bundle", expected=expected, version=FORMAT_VERSION,
            hints={"mirror_rt encoder": f"export it first: mirror-rt export {folder} --out BUNDLE"},
        )  # fmt: skip
        try:
            return _from_dict(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(f"{path} is damaged: {error!r}") from error

    def variant(self, name: str | None = None) -> Variant:
        """Return the graph of that name; None for `fp32`, or the first where there is no `fp32`.

        Raises:
            BundleError: the bundle has none of that name.
        """
        found = self.variants.get(name or ("fp32" if "fp32" in self.variants else self._first()))
        if found is None:
            raise BundleError(f"no variant {name!r}: this bundle has {', '.join(self.variants)}")
        return found

    def _first(self) -> str:
        return next(iter(self.variants), "fp32")

    def files_for(self, variants: Iterable[Variant]) -> dict[str, FileRecord]:
        """Files that these variants need: every file but the graphs of the others."""
        kept = {file for variant in variants for file in (variant.file, variant.weights)}
        others = [v.file for v in self.variants.values() if v.file not in kept]
        # Weights beside a graph have its name and `_data` after it.
        theirs = (*others, *map(Layout.mapped, others))
        return {name: r for name, r in self.files.items() if not name.startswith(theirs)}

    def damage(self, folder: Path, files: dict[str, FileRecord] | None = None) -> str | None:
        """Say what is wrong with the first file that is missing or changed; None where none is.

        Args:
            folder: where the files are.
            files: those to compare with their size and hash; None for every recorded one.
        """
        for name, record in (self.files if files is None else files).items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if (size := path.stat().st_size) != record.bytes:
                return f"{name} has {size} bytes, its manifest says {record.bytes}"
            if (found := sha256(path)) != record.sha256:
                return (
                    f"{name} has SHA-256 {found[:16]}..., its manifest says {record.sha256[:16]}..."
                )
        return None

    def verify(self, folder: Path, files: dict[str, FileRecord] | None = None) -> None:
        """Compare every recorded file, or those of `files` alone, with its size and hash.

        Raises:
            BundleIntegrityError: naming the first file that is missing or differs.
        """
        if damage := self.damage(folder, files):
            raise BundleIntegrityError(f"{folder} is damaged: {damage}: make it again")


def record_files(folder: Path) -> dict[str, FileRecord]:
    """Size and hash of every file under `folder` but the manifest and card, by sorted path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        name: FileRecord(path.stat().st_size, sha256(path))
        for path in paths
        if (name := path.relative_to(folder).as_posix()) not in (Layout.manifest, Layout.card)
    }


def declared_format(folder: Path) -> str | None:
    """What `folder`/mirror.json says the folder is; None where there is no such file."""
    if not (folder / Layout.manifest).is_file():
        return None
    values = read_json(folder / Layout.manifest, "bundle")
    return values.get("format") if isinstance(values, dict) else None


def _from_dict(values: dict[str, Any]) -> Manifest:
    hints = get_type_hints(Manifest)
    values = {name: value for name, value in values.items() if name in hints}
    values["files"] = {name: _file_record(record) for name, record in values["files"].items()}
    variants = values.get("variants", {})
    values["variants"] = {name: _variant(entry) for name, entry in variants.items()}
    for name, value in values.items():
        if name not in ("files", "variants") and not is_a(value, hints[name]):
            raise ValueError(f"{name} is {value!r}, expected {hints[name]}")
    manifest = Manifest(**values)
    if outside := [name for name in manifest.files if not _is_inside(name)]:
        raise ValueError(f"{outside[0]!r} is no path inside the folder")
    if manifest.dimension < 1 or manifest.max_length < 1 or not 0 <= manifest.pad_id < 2**31:
        raise ValueError("dimension and max_length must be at least 1, pad_id at least 0")
    if not all(is_a(mode, PoolingMode) for mode in manifest.pooling.split("+")):
        raise ValueError(f"pooling is {manifest.pooling!r}, which is unknown")
    if manifest.pad_to not in (None, manifest.max_length):
        raise ValueError(f"pad_to is {manifest.pad_to}, expected max_length or null")
    if manifest.format == "mirror_rt bundle":
        graphs = [variant.file for variant in manifest.variants.values()]
        weights = [v.weights for v in manifest.variants.values() if v.weights]
        for required in (*graphs, *weights, Layout.tokenizer):
            if required not in manifest.files:
                raise ValueError(f"no record of {required}")
        if not graphs:
            raise ValueError("it names no variant")
    return manifest


def _variant(values: dict[str, Any]) -> Variant:
    hints = get_type_hints(Variant)
    values = {name: value for name, value in values.items() if name in hints}
    for name, value in values.items():
        if not is_a(value, hints[name]):
            raise ValueError(f"{name} of a variant is {value!r}, expected {hints[name]}")
    return Variant(**values)


def _file_record(record: dict[str, Any]) -> FileRecord:
    made = FileRecord(**record)
    if not (is_a(made.bytes, int) and isinstance(made.sha256, str)):
        raise ValueError(f"{record!r} is not a size and a SHA-256")
    return made


def _is_inside(name: str) -> bool:
    """Whether a path of a manifest, which may come from a stranger, stays in its folder."""
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name)
