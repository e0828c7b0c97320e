"""The part of a manifest that describes the head of a cross-encoder, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mirror_rt.bundle.model_kinds import PAIRS, Head
from mirror_rt.schema import at_most, between

LayerActivation = Literal["identity", "tanh", "relu", "gelu", "gelu_tanh", "silu"]
ScoreActivation = Literal["identity", "sigmoid", "softmax", "tanh"]

_Size = Annotated[int, between(1, 65_536)]


@dataclass(frozen=True, slots=True)
class ScoreLayer:
    """A linear layer, an activation and perhaps a layer normalisation, one behind the other.

    Attributes:
        inputs: numbers that it takes.
        outputs: numbers that it gives.
        activation: the function that is applied to them.
        norm: epsilon of the normalisation; None for none.
    """

    inputs: _Size
    outputs: _Size
    activation: LayerActivation = "identity"
    norm: Annotated[float, between(1e-30, 1)] | None = None

    @property
    def weights(self) -> int:
        """The number of its weights: of the matrix, its bias, and those of the normalisation."""
        return self.outputs * (self.inputs + (1 if self.norm is None else 3))


@dataclass(frozen=True, slots=True)
class ScoreLayers(Head):
    """The head of a cross-encoder: layers that make logits of the vector of a pair.

    Attributes:
        layers: the layers, whose last one gives a logit for each label.
        labels: names of the C labels.
        activation: makes scores of the logits, unless a call asks for another.
    """

    kind = PAIRS
    file = "heads/scores.npy"

    layers: Annotated[list[ScoreLayer], at_most(8, "layers")]
    labels: Annotated[list[Annotated[str, at_most(1000, "characters")]], at_most(65_536, "labels")]
    activation: ScoreActivation = "identity"

    def problem(self, dimension: int, max_length: int = 0) -> str | None:
        """Return a contradiction, in itself or with vectors of `dimension` numbers, or None."""
        sizes = [(layer.inputs, layer.outputs) for layer in self.layers]
        expected = [dimension, *(outputs for _, outputs in sizes)]
        for number, ((inputs, _), size) in enumerate(zip(sizes, expected, strict=False)):
            if inputs != size:
                return f"scores.layers[{number}].inputs is {inputs}, expected {size}"
        if not self.labels or expected[-1] != len(self.labels) or not sizes:
            return f"scores.labels are {len(self.labels)}, expected one for each output"
        return None

    def row(self, dimension: int) -> tuple[str, str]:
        """Return a name and a line for the output of the model."""
        labels = ", ".join(self.labels[:5]) + ", ..." * (len(self.labels) > 5)
        return "scores", f"of pairs: {len(self.labels)} ({labels}), {self.activation}"

    def introduction(self, dimension: int, max_length: int) -> tuple[str, str]:
        """Return the sentences of a model card on the model, and on its ONNX graph."""
        scores = f"{len(self.labels)} score{'s' * (len(self.labels) > 1)}"
        return (
            f"A cross-encoder: pairs of texts in, {scores} out.",
            "The ONNX graph gives the vector of a pair, of which mirror_rt makes its score; a pair "
            f"may have {max_length} tokens.",
        )
