"""The part of a manifest that describes the head of a sparse encoder, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from mirror_rt.bundle.model_kinds import WORDS, Head
from mirror_rt.schema import between

WordPooling = Literal["max", "sum"]
WordWeighing = Literal["relu", "log1p_relu"]
WordActivation = Literal["gelu", "gelu_tanh", "silu", "relu"]
_Count = Annotated[int, between(1, 2**31 - 1)]


@dataclass(frozen=True, slots=True)
class WordLayers(Head):
    """The head of a sparse encoder (SPLADE), which gives each text a weight for each word.

    A linear layer, an activation, a normalisation and a matrix make a logit for each word of the
    vector of each token, as in a masked language model.

    Attributes:
        size: V, the number of words, which are the tokens of the vocabulary.
        inner: E, the length of the vectors that the matrix takes.
        activation: the function that is applied behind the linear layer.
        norm: epsilon of the normalisation.
        pooling: whether the weight of a word is its largest over the tokens, or their sum.
        weighing: `relu` for log(1 + x) of a logit x above 0; `log1p_relu` for log(1 + that).
        active: most words of a vector by default; None for all.
        query_length: most tokens of a query whose words have the weights of a table, which takes
            no model; None where queries go the way of documents.
    """

    kind = WORDS
    file = "heads/words.safetensors"
    table: ClassVar[str] = "heads/queries.safetensors"  # of words of queries, if they have one

    size: _Count
    inner: Annotated[int, between(1, 65_536)]
    activation: WordActivation
    norm: Annotated[float, between(0, 1)]
    pooling: WordPooling = "max"
    weighing: WordWeighing = "relu"
    active: _Count | None = None
    query_length: _Count | None = None

    @property
    def files(self) -> list[str]:
        """The paths of all its weights inside a bundle; their sizes are checked by their reader."""
        return [self.file, *([] if self.query_length is None else [self.table])]

    def row(self, dimension: int) -> tuple[str, str]:
        """Return a name and a line for the output of the model."""
        table = "" if self.query_length is None else ", queries by a table"
        return "words", f"{self.size} words, {self.pooling} of {self.weighing}{table}"

    def introduction(self, dimension: int, max_length: int) -> tuple[str, str]:
        """Return the sentences of a model card on the model, and on its ONNX graph."""
        return (
            f"A sparse encoder: strings in, weights of {self.size} words out, most of them 0.",
            "The ONNX graph gives vectors of tokens, of which mirror_rt makes the weights; texts "
            f"may have {max_length} tokens.",
        )
