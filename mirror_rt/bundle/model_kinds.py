"""The kinds of models: a row for each, which all that tells them apart reads.

A kind is known by the format of its bundle, or by the head that its manifest describes. Each head
is a class of its own (score_layers.py, word_layers.py, token_vectors.py), which says all else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

# A tuned Hugging Face folder, and the bundle that `export` makes of it; both have a mirror.json.
# `ONNX files` are those of other publishers, whose manifest is made in memory (onnx_files.py).
# `static files` are those of model2vec and sentence-transformers (static_files.py).
# `safetensors files` are those of transformers and sentence-transformers (checkpoint_files.py).
# Other models than encoders of dense vectors have formats of their own, so that every version that
# makes such vectors refuses them.
Format = Literal[
    "mirror_rt encoder",
    "mirror_rt bundle",
    "mirror_rt cross-encoder",
    "mirror_rt multi-vector encoder",
    "mirror_rt sparse encoder",
    "ONNX files",
    "static files",
    "safetensors files",
]
# The answers of a server to the texts of a request; several kinds of models may give the same.
Gives = Literal["vectors", "scores", "words"]


@dataclass(frozen=True, slots=True)
class ModelKind:
    """A kind of model.

    Attributes:
        format: that of its bundles.
        field: where its manifest describes its head; "" for encoders of dense vectors, which have
            none.
        does: its purpose, for messages.
        loader: the class of `mirror_rt` that loads it.
        gives: the answers that a server gives with it.
        tags: those of its model card.
        task: that of its model card, as a hub calls it.
        use: lines of Python for its model card, with `{}` for its name.
        unit: the name of its inputs.
    """

    format: Format
    field: str
    does: str
    loader: str
    gives: Gives
    tags: tuple[str, ...]
    use: str
    task: str = "sentence-similarity"
    unit: str = "texts"

    @property
    def advice(self) -> str:
        """Its purpose and the class that loads it, to follow a name in a message."""
        return f"{self.does}: mirror_rt.{self.loader}.load takes it"


DENSE = ModelKind(
    "mirror_rt bundle", "", "makes vectors of texts", "Encoder", "vectors",
    ("feature-extraction", "onnx", "onnxruntime", "sentence-embeddings"),
    "from mirror_rt import Encoder\n\nencoder = Encoder.load({})\n"
    'vectors = encoder.encode(["one string", "another"])',
)  # fmt: skip
PAIRS = ModelKind(
    "mirror_rt cross-encoder", "scores", "scores pairs of texts", "Reranker", "scores",
    ("cross-encoder", "onnx", "reranker"),
    "from mirror_rt import Reranker\n\nreranker = Reranker.load({})\n"
    'ranking = reranker.rank("a query", ["one document", "another"])',
    task="text-ranking", unit="pairs",
)  # fmt: skip
WORDS = ModelKind(
    "mirror_rt sparse encoder", "words", "weighs words", "SparseEncoder", "words",
    ("onnx", "sparse-encoder", "splade"),
    "from mirror_rt import SparseEncoder\n\nencoder = SparseEncoder.load({})\n"
    'query = encoder.encode_query("a query")\n'
    'documents = encoder.encode_document(["one document", "another"])',
)  # fmt: skip
LATE = ModelKind(
    "mirror_rt multi-vector encoder", "tokens", "makes a vector of each token",
    "MultiVectorEncoder", "scores", ("colbert", "late-interaction", "multi-vector", "onnx"),
    "from mirror_rt import MultiVectorEncoder\n\nencoder = MultiVectorEncoder.load({})\n"
    'ranking = encoder.rank("a query", ["one document", "another"])',
)  # fmt: skip

KINDS = {kind.format: kind for kind in (DENSE, PAIRS, WORDS, LATE)}
WITH_HEADS = tuple(kind for kind in KINDS.values() if kind.field)


class Head(ABC):
    """The part of a manifest that describes the layers behind an encoder.

    Attributes:
        kind: the kind of such models.
        file: the path of its weights inside a bundle.
    """

    __slots__ = ()
    kind: ClassVar[ModelKind]
    file: ClassVar[str]

    @property
    def files(self) -> list[str]:
        """The paths of all its weights inside a bundle."""
        return [self.file]

    def problem(self, dimension: int, max_length: int) -> str | None:
        """Return a contradiction, in itself or with an encoder's vectors and limit, or None."""
        return None

    @abstractmethod
    def row(self, dimension: int) -> tuple[str, str]:
        """Return a name and a line for the output of the model, whose encoder has `dimension`."""

    @abstractmethod
    def introduction(self, dimension: int, max_length: int) -> tuple[str, str]:
        """Return the sentences of a model card on the model, and on its ONNX graph."""
