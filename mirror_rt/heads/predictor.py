"""Predict with an encoder and its task heads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import BatchEncoder, as_list
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import BundleError, ConfigError, InvalidTextError
from mirror_rt.evaluation.statistics import pearson, spearman
from mirror_rt.heads.task_heads import Heads, Predictions, TaskHead
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.io.file_states import load_unchanged
from mirror_rt.keywords import with_visible_options
from mirror_rt.pipeline.options import OnError, OnTooLong
from mirror_rt.tokens.pairs import why_no_pair
from mirror_rt.tokens.validity import why_invalid

_NO_VECTOR = "it is too long, leaves no token, or the model gives it no finite vector"


@with_visible_options(LoadOptions)
class Predictor:
    """A loaded bundle with task heads: `Predictor.load(path).predict(head, texts)`.

    A predictor is safe to use from several threads at once.

    Raises:
        BundleError: the heads take vectors of another dimension than the encoder gives.
    """

    def __init__(self, encoder: BatchEncoder, heads: Heads) -> None:
        if heads.dimension != encoder.dimension:
            raise BundleError(
                f"the heads take vectors of {heads.dimension} dimensions, the encoder gives "
                f"{encoder.dimension}"
            )
        self.encoder = encoder
        self.heads = heads

    @classmethod
    def load(cls, path_or_name: str | Path, **keywords: Unpack[LoadKeywords]) -> Self:
        """Load a bundle with its heads.

        Args:
            path_or_name: as `Encoder.load`.
            **keywords: the fields of `LoadOptions`.

        Raises:
            BundleError: as `Encoder.load`, or the bundle has no heads.
            ConfigError, ProviderError, MissingDependencyError: as `Encoder.load`.
        """
        folder, options = Encoder._find(path_or_name, keywords)
        encoder, heads = load_unchanged(
            folder,
            lambda: (Encoder._load_whole(folder, options), Heads.read(folder)),
            lambda made: made[0].close(),
        )
        return cls(encoder, heads)

    def predict(
        self,
        head: str | None,
        inputs: Iterable[Any],
        *,
        batch_size: int = 32,
        on_too_long: OnTooLong = "truncate",
        errors: OnError = "raise",
    ) -> Predictions:
        """Apply a head to texts, or to pairs of texts.

        Args:
            head: name of the head; None for the only one.
            inputs: strings, or pairs of strings for a head that takes pairs.
            batch_size: as in `Encoder.encode`.
            on_too_long: as in `Encoder.encode`.
            errors: `"raise"` refuses the whole call because of an unusable text; `"nan"` gives
                that text no label and NaN as scores.

        Returns:
            Labels and scores, in the order of `inputs`.

        Raises:
            InvalidTextError: a text cannot be encoded, or an item is not a pair.
            ConfigError: there is no such head, or an option has an unusable value.
        """
        if errors not in ("raise", "nan"):
            raise ConfigError(field="errors", expected="'raise' or 'nan'", value=errors)
        chosen = self.heads.get(head)
        if isinstance(inputs, str):
            raise ConfigError("expected a list of texts or pairs, got one string")
        items = as_list(inputs)
        reasons = [_why_unusable(item, pairs=chosen.takes_pairs) for item in items]
        usable = [item for item, reason in zip(items, reasons, strict=True) if reason is None]
        if errors == "raise" and len(usable) < len(items):
            _raise_unusable(reasons)
        sides = list(zip(*usable, strict=True)) if chosen.takes_pairs else [usable]
        found = self._apply(chosen, sides, batch_size=batch_size, on_too_long=on_too_long)
        found = _spread(found, reasons)
        if errors == "raise" and np.isnan(found.scores).any():
            _raise_unusable([_NO_VECTOR if np.isnan(row).any() else None for row in found.scores])
        return found

    def _apply(
        self, head: TaskHead, sides: list[Any], *, batch_size: int, on_too_long: OnTooLong
    ) -> Predictions:
        """Encode every distinct text once, and apply the head; NaN for texts without a vector."""
        texts = list(dict.fromkeys(text for side in sides for text in side))
        if not texts:
            empty = np.empty((0, self.heads.dimension), np.float32)
            return head(empty, empty) if head.takes_pairs else head(empty)
        vectors = self.encoder.encode(
            texts, batch_size, normalize_embeddings=False, on_too_long=on_too_long, errors="nan"
        )
        row = {text: i for i, text in enumerate(texts)}
        return head(*(vectors[[row[text] for text in side]] for side in sides))


def class_of(cell: str, labels: tuple[str, ...]) -> int | None:
    """Return the number of the class that a cell of a file names or numbers; None if unknown."""
    names = [label.lower() for label in labels]
    if (text := cell.strip().lower()) in names:
        return names.index(text)
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() and 0 <= number < len(labels) else None


def score_predictions(
    head: TaskHead, found: Predictions, targets: npt.ArrayLike
) -> dict[str, float | None]:
    """Compare n predictions of a head with the correct answers.

    The targets are int [n], numbers of classes; or float [n], values.

    Returns:
        `accuracy`, and as `majority` the accuracy of always predicting the most frequent class; or
        for a regressor `pearson` and `spearman`, None where they are undefined because all values
        of a side are equal.
    """
    right = np.asarray(targets)
    if head.scale is not None:
        linear = pearson(found.scores, right)
        rank = None if linear is None else spearman(found.scores, right)
        return {"pearson": linear, "spearman": rank}
    said = np.array([-1 if label is None else head.labels.index(label) for label in found.labels])
    counts = np.bincount(right.astype(np.int64), minlength=len(head.labels))
    return {
        "accuracy": float((said == right).mean()),
        "majority": float(counts.max() / counts.sum()),
    }


def _why_unusable(item: Any, *, pairs: bool) -> str | None:
    if not pairs:
        return why_invalid(item)
    return why_no_pair(item) or next((why for text in item if (why := why_invalid(text))), None)


def _raise_unusable(reasons: list[str | None]) -> None:
    raise InvalidTextError([(i, reason) for i, reason in enumerate(reasons) if reason])


def _spread(found: Predictions, reasons: list[str | None]) -> Predictions:
    """Put predictions in their places; items with a reason get NaN, and NaN gets no label."""
    rows = [i for i, reason in enumerate(reasons) if reason is None]
    labels: list[str | None] = [None] * len(reasons)
    scores = np.full((len(reasons), *found.scores.shape[1:]), np.nan)
    for row, label, score in zip(rows, found.labels, found.scores, strict=True):
        scores[row] = score
        labels[row] = None if np.isnan(score).any() else label
    return Predictions(labels, scores)
