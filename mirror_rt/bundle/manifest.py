"""The manifest mirror.json: what a folder is, how it was made, and the hashes of its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, get_args

from mirror_rt.bundle.file_records import FileRecord, damage_of, verify
from mirror_rt.bundle.json_document import read_document, read_json
from mirror_rt.bundle.model_kinds import DENSE, KINDS, WITH_HEADS, Format, Head, ModelKind
from mirror_rt.bundle.score_layers import ScoreLayers
from mirror_rt.bundle.token_vectors import TokenVectors
from mirror_rt.bundle.word_layers import WordLayers
from mirror_rt.errors import BundleError
from mirror_rt.io.atomic import sha256
from mirror_rt.schema import Digest, InnerPath, Rule, at_most, between, build

FORMAT_VERSION = 1

Pooling = Literal[
    "cls", "mean", "max", "mean-without-special", "mean-with-padding", "first-last-avg", "lasttoken"
]
# `Pooling` lists the poolings that can be tuned; the others occur in published models, and have
# the names that sentence-transformers gives them.
PoolingMode = Pooling | Literal["mean_sqrt_len_tokens", "weightedmean"]
Precision = Literal["fp32", "fp16", "bf16", "int8"]
# `cpu` graphs run under every execution provider, `cuda` graphs only under CUDA; `native` variants
# are made of the fp32 graph by the engine of this package, and `static` is a table of vectors.
Target = Literal["cpu", "cuda", "native", "static"]
BUNDLES: tuple[Format, ...] = tuple(KINDS)

# Advice for each format that is not the expected one.
_HINTS = {kind.format: f"it {kind.advice}" for kind in KINDS.values()} | {
    "mirror_rt encoder": "export it first: mirror-rt export {} --out BUNDLE",
}

# These limits are far above every published model; they keep a damaged number from allocating
# huge amounts of memory.
Dimension = Annotated[int, between(1, 65_536)]
MOST_TOKENS = 1_048_576
_Tokens = Annotated[int, between(1, MOST_TOKENS)]
_TokenId = Annotated[int, between(0, 2**31 - 1)]
_Prompts = Annotated[
    dict[str, Annotated[str, at_most(10_000, "characters")]], at_most(1000, "prompts")
]
POOLING_MODES = frozenset(mode for modes in get_args(PoolingMode) for mode in get_args(modes))
_Poolings = Annotated[
    str,
    Rule(f"one or several of {', '.join(sorted(POOLING_MODES))}, joined by +",
         lambda value: set(value.split("+")) <= POOLING_MODES),
]  # fmt: skip

_MAPPED = "_mapped.onnx"


class Layout:
    """The paths of the files in a bundle; they are named as other tools expect them."""

    manifest = "mirror.json"
    pack = "pack.json"  # index of a folder of several bundles
    card = "README.md"  # not among the hashed files, because people edit it on the hub
    model = "onnx/model.onnx"
    tokenizer = "tokenizer.json"
    heads = "heads/heads.json"  # optional, see mirror_rt.heads.task_heads

    @staticmethod
    def mapped(graph: str) -> str:
        """Return the path of the same graph whose weights are mapped from the file `graph`."""
        return graph.removesuffix(".onnx") + _MAPPED

    @staticmethod
    def is_mapped(graph: Path) -> bool:
        """Return whether onnxruntime maps the weights of this graph instead of reading them."""
        return graph.name.endswith(_MAPPED)


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the graphs of a bundle.

    Attributes:
        file: path inside the folder.
        precision: number format of its weights, or under `native` of its products.
        target: execution providers that it runs under.
        graph: numbers of its nodes and fused operators, and its opset.
        parity: report of the comparison with PyTorch; None if they were not compared.
        unchecked: why they were not compared; None if they were.
        weights: path of the graph whose weights this one reads; None if it has its own.
    """

    file: InnerPath
    precision: Precision
    target: Target
    graph: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] | None = None
    unchecked: str | None = None
    weights: InnerPath | None = None


@dataclass(frozen=True, slots=True)
class WeightTable:
    """Where the native engine finds the weights of an encoder, float32, in the file of a graph.

    Attributes:
        file: path inside the folder.
        typed: whether the two texts of a pair have tokens of two types.
        tensors: name -> offset and shape, by the names in checkpoints of the family. A matrix,
            whose name ends before `.weight`, is [inputs, outputs]; several of the same inputs,
            joined by `+`, are side by side.
        sha256: the hash of the file whose places these are.
    """

    file: InnerPath
    typed: bool
    tensors: dict[str, Annotated[list[int], at_most(4, "numbers")]]
    sha256: Digest | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of mirror.json, in a bundle and in the tuned folder that it was made from.

    Attributes:
        dimension: length of an embedding.
        max_length: most tokens of a text, special tokens included.
        pad_id: token id to pad with.
        pad_to: number of tokens every text is padded to (only with pooling `mean-with-padding`).
        pooling: how token vectors become one (see `PoolingMode`); several are joined by `+`.
        mask_token: the tokenizer's mask token; None if it has none.
        base_model: name and revision of the model that was tuned.
        recipe: every field of the training recipe; None for a model that was not tuned here.
        data: source, SHA-256 and counts of the training data.
        training: seed, precision, steps, loss and speed of the run.
        matryoshka: numbers of first dimensions of a vector that were trained to stand alone, for
            `truncate_dim`; none for most models.
        normalize: whether vectors are of unit length by default.
        space: id of the vector space; vectors of bundles with the same id can be compared. None in
            a tuned folder, whose export decides it.
        alignment: how the vectors were mapped into the space of another bundle; None if they were
            not.
        prompts: name -> prompt to put before a text; `default_prompt_name` is the default one.
        scores: head of a cross-encoder, which makes scores of the vectors of pairs; None for an
            encoder of texts.
        tokens: how a late-interaction model makes vectors of tokens; None for any other.
        words: head of a sparse encoder, which makes weights of words of the vectors of tokens;
            None for an encoder of dense vectors.
        variants: name -> graph (`fp32`, `int8`, `fp16-cuda` ...); none in a tuned folder.
        native: the weights that the native engine takes of the fp32 graph; None if it takes none.
        files: path inside the folder -> FileRecord.
    """

    dimension: Dimension
    max_length: _Tokens
    pad_id: _TokenId
    pooling: _Poolings
    pad_to: _Tokens | None = None
    mask_token: str | None = None
    language: str | None = None
    level: str | None = None
    base_model: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    matryoshka: list[Dimension] = field(default_factory=list)
    normalize: bool = True
    space: Annotated[str, at_most(256, "characters")] | None = None
    alignment: dict[str, Any] | None = None
    prompts: _Prompts = field(default_factory=dict)
    default_prompt_name: str | None = None
    scores: ScoreLayers | None = None
    tokens: TokenVectors | None = None
    words: WordLayers | None = None
    variants: dict[str, Variant] = field(default_factory=dict)
    native: WeightTable | None = None
    generator: str = ""
    created: str = ""
    files: dict[InnerPath, FileRecord] = field(default_factory=dict)
    format: Format = "mirror_rt bundle"
    format_version: int = FORMAT_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the format first."""
        values = dataclasses.asdict(self)
        head = {name: values.pop(name) for name in ("format", "format_version")}
        return head | values

    @classmethod
    def read(
        cls, folder: Path, expected: Format | tuple[Format, ...] | None = "mirror_rt bundle"
    ) -> Manifest:
        """Read and check `folder`/mirror.json; None for `expected` takes bundles of all kinds.

        Raises:
            BundleError: there is no such folder or manifest, its format is not `expected`, or a
                field is missing, of a wrong type, outside its limits or contradicts another one.
            BundleVersionError: the format version is newer than `FORMAT_VERSION`.
        """
        return read_document(
            folder / Layout.manifest, cls.of_values, noun="bundle", version=FORMAT_VERSION,
            expected=(expected,) if isinstance(expected, str) else expected or BUNDLES,
            hints={one: hint.format(folder) for one, hint in _HINTS.items()},
        )  # fmt: skip

    @classmethod
    def of_values(cls, values: Any) -> Manifest:
        """Make a manifest of JSON values; ValueError if one does not fit or contradicts another."""
        manifest: Manifest = build(cls, values)
        manifest._check_consistent()
        return manifest

    def _check_consistent(self) -> None:
        """Check the rules that involve several fields; raise a ValueError that names one."""
        if self.pad_to not in (None, self.max_length):
            raise ValueError(f"pad_to is {self.pad_to}, expected max_length or null")
        if self.default_prompt_name not in (None, *self.prompts):
            raise ValueError(
                f"default_prompt_name is {self.default_prompt_name!r}, expected one of prompts "
                f"({', '.join(self.prompts) or 'there are none'}) or null"
            )
        if self.format in BUNDLES:
            if not self.variants:
                raise ValueError("variants is {}, expected at least one")
            parts = [part for v in self.variants.values() for part in (v.file, v.weights) if part]
            if self.native is not None:
                parts.append(self.native.file)
            for kind in WITH_HEADS:
                if (getattr(self, kind.field) is not None) != (self.format == kind.format):
                    raise ValueError(
                        f"format is {self.format!r}, and only {kind.format!r} has {kind.field}"
                    )
            if self.head is not None:
                if problem := self.head.problem(self.dimension, self.max_length):
                    raise ValueError(problem)
                parts += self.head.files
            for required in (*parts, self.tokenizer):
                if required not in self.files:
                    raise ValueError(f"files has no record of {required}")

    @property
    def has_own_head(self) -> bool:
        """Tell whether a head of its own follows the vectors, in the place of declared layers."""
        return self.head is not None

    @property
    def head(self) -> Head | None:
        """The head of its own that a model has, in whichever field; None for dense vectors."""
        heads = (getattr(self, kind.field) for kind in WITH_HEADS)
        return next((one for one in heads if one is not None), None)

    @property
    def kind(self) -> ModelKind:
        """The kind of the model, by its head."""
        return DENSE if self.head is None else self.head.kind

    @property
    def is_static(self) -> bool:
        """Tell whether the vectors of tokens are looked up in a table."""
        return any(variant.target == "static" for variant in self.variants.values())

    @property
    def is_checkpoint(self) -> bool:
        """Tell whether the native engine takes the weights from files of safetensors."""
        return self.format == "safetensors files"

    @property
    def tokenizer(self) -> str:
        """The path of the tokenizer inside the folder: beside weights that are no graph."""
        weights = self.is_static or self.is_checkpoint
        beside = PurePosixPath(self.variant().file if weights else Layout.manifest)
        return beside.with_name(Layout.tokenizer).as_posix()

    def variant(self, name: str | None = None) -> Variant:
        """Return the variant of that name; None for `fp32`, or for the first if there is no `fp32`.

        Raises:
            BundleError: the bundle has no variant of that name.
        """
        default = "fp32" if "fp32" in self.variants else next(iter(self.variants), "fp32")
        found = self.variants.get(name or default)
        if found is None:
            raise BundleError(f"no variant {name!r}: this bundle has {', '.join(self.variants)}")
        return found

    def files_of(self, names: Iterable[str | None] | None) -> dict[str, FileRecord]:
        """Return the files that the variants of these names need; None for all files."""
        return self.files if names is None else self.files_for(map(self.variant, names))

    def files_for(self, variants: Iterable[Variant]) -> dict[str, FileRecord]:
        """Return the files that these variants need: all but the graphs of other variants."""
        kept = {file for variant in variants for file in (variant.file, variant.weights)}
        others = [v.file for v in self.variants.values() if v.file not in kept]
        # A file of weights beside a graph has the name of the graph with `_data` appended.
        theirs = (*others, *map(Layout.mapped, others))
        return {name: r for name, r in self.files.items() if not name.startswith(theirs)}

    def damage(self, folder: Path) -> str | None:
        """Describe the first recorded file that is missing or was changed; None without one."""
        return damage_of(folder, self.files)

    def verify(self, folder: Path, files: dict[str, FileRecord] | None = None) -> None:
        """Compare every recorded file, or only those of `files`, with its size and hash.

        Raises:
            BundleIntegrityError: a file is missing or differs; the error names the first one.
        """
        verify(folder, self.files if files is None else files)


def record_files(folder: Path) -> dict[str, FileRecord]:
    """Record all files of a bundle but its manifest and its card, sorted by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        name: FileRecord(path.stat().st_size, sha256(path))
        for path in paths
        if (name := path.relative_to(folder).as_posix()) not in (Layout.manifest, Layout.card)
    }


def with_records(manifest: Manifest, folder: Path) -> Manifest:
    """Return the manifest of a bundle with the records of the files in its folder."""
    files, table = record_files(folder), manifest.native
    if table is not None and table.file in files:
        table = dataclasses.replace(table, sha256=files[table.file].sha256)
    else:
        table = None
    return dataclasses.replace(manifest, files=files, native=table)


def declared_format(folder: Path) -> str | None:
    """Return the format that `folder`/mirror.json declares; None if there is no such file."""
    if not (folder / Layout.manifest).is_file():
        return None
    values = read_json(folder / Layout.manifest, "bundle")
    return values.get("format") if isinstance(values, dict) else None
