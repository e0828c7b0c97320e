"""The part of a manifest that says how a late-interaction model makes vectors of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mirror_rt.bundle.score_layers import ScoreLayer
from mirror_rt.schema import at_most
from mirror_rt.tokens.sides import TextSide


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The layers behind the encoder of a late-interaction model, and both kinds of texts.

    Attributes:
        layers: linear layers, applied to the vector of every token.
        query, document: the kinds of texts.
        mean: whether a score is divided by the number of vectors of the query.
    """

    layers: Annotated[list[ScoreLayer], at_most(8, "layers")]
    query: TextSide
    document: TextSide
    mean: bool = False

    def dimension(self, hidden: int) -> int:
        """Return the length of a vector, of those of the encoder."""
        return self.layers[-1].outputs if self.layers else hidden

    def problem(self, dimension: int, max_length: int) -> str | None:
        """Return what does not go together, with an encoder's vectors and limit, or None."""
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
