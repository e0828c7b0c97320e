"""The part of a manifest that says how a late-interaction model makes vectors of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mirror_rt.bundle.model_kinds import LATE, Head
from mirror_rt.bundle.score_layers import ScoreLayer
from mirror_rt.schema import at_most
from mirror_rt.tokens.sides import TextSide


@dataclass(frozen=True, slots=True)
class TokenVectors(Head):
    """The layers behind the encoder of a late-interaction model, and both kinds of texts.

    Attributes:
        layers: linear layers, applied to the vector of every token.
        query, document: the kinds of texts.
        mean: whether a score is divided by the number of vectors of the query.
    """

    kind = LATE
    file = "heads/projection.npy"

    layers: Annotated[list[ScoreLayer], at_most(8, "layers")]
    query: TextSide
    document: TextSide
    mean: bool = False

    def dimension(self, hidden: int) -> int:
        """Return the length of a vector, of those of the encoder."""
        return self.layers[-1].outputs if self.layers else hidden

    def problem(self, dimension: int, max_length: int) -> str | None:
        """Return a contradiction, in itself or with an encoder's vectors and limit, or None."""
        for number, layer in enumerate(self.layers):
            if layer.inputs != dimension:
                return f"tokens.layers[{number}].inputs is {layer.inputs}, expected {dimension}"
            dimension = layer.outputs
        for name, side in (("query", self.query), ("document", self.document)):
            if not side.least <= side.max_length <= max_length:
                return (
                    f"tokens.{name} has {side.least} .. {side.max_length} tokens, expected at most "
                    f"{max_length}"
                )
            if side.least and side.filler is None:
                return f"tokens.{name} has no filler"
        return None

    def row(self, dimension: int) -> tuple[str, str]:
        """Return a name and a line for the output of the model."""
        limits = f"{self.query.max_length} of a query, {self.document.max_length} of a document"
        return "token vectors", f"{self.dimension(dimension)} dimensions, at most {limits}"

    def introduction(self, dimension: int, max_length: int) -> tuple[str, str]:
        """Return the sentences of a model card on the model, and on its ONNX graph."""
        return (
            f"A late-interaction model: a vector of {self.dimension(dimension)} dimensions for "
            "each token.",
            "The ONNX graph gives the vectors that mirror_rt projects; queries may have "
            f"{self.query.max_length} tokens, documents {self.document.max_length}.",
        )
