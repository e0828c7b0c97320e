"""Task heads: small layers on the vectors of texts, as data that numpy applies.

A bundle may hold some in its folder `heads`: `heads.json` describes them, NAME.npz has the weights
of each. They take vectors as pooled, not normalised.
"""

from __future__ import annotations

import math
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.json_document import is_a, read_document
from mirror_rt.bundle.manifest import Layout
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.io.atomic import write_json

__all__ = ["FEATURES", "HEADS_VERSION", "HeadKind", "Heads", "Predictions", "TaskHead"]

HEADS_VERSION = 1

HeadKind = Literal["classifier", "cosine-classifier", "cosine-regressor"]
# Of the two vectors of a pair.
FEATURES = ("u", "v", "|u-v|", "u*v")

Floats = npt.NDArray[np.float64]
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a head says of n texts or pairs.

    Attributes:
        labels: the name of each one's class; None for a regressor, and where a text is unusable.
        scores: float64; of a classifier [n, C], the probability of every class; else [n]: the
            similarity that decides, or the predicted value. NaN where a text is unusable.
    """

    labels: list[str | None]
    scores: Floats


@dataclass(frozen=True, slots=True)
class TaskHead:
    """A linear layer on the vectors of a text or of a pair, and what is made of its output.

    Attributes:
        name: of the task.
        kind: `classifier` (softmax over classes), `cosine-classifier` or `cosine-regressor` (the
            cosine of the two projected vectors of a pair, at least `hinge`).
        weight: float32 [out, in].
        bias: float32 [out].
        labels: names of the C classes; none for a regressor.
        features: of a classifier of pairs, what is joined, of `FEATURES`; none for texts.
        hinge: cosines below it count as it. A cosine-classifier says its second class from the
            middle between it and 1 on.
        scale: what a regressor's similarities `hinge` and 1 stand for.
    """

    name: str
    kind: HeadKind
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    labels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    hinge: float = 0.0
    scale: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise ValueError(f"head {self.name!r}: {problem}")

    @property
    def takes_pairs(self) -> bool:
        """Whether it is applied to two texts."""
        return self.kind != "classifier" or bool(self.features)

    @property
    def dimension(self) -> int:
        """Length D of the vectors that it takes."""
        return int(self.weight.shape[1]) // max(1, len(self.features))

    def __call__(self, u: npt.ArrayLike, v: npt.ArrayLike | None = None) -> Predictions:
        """Apply the head to vectors as pooled.

        Args:
            u: [n, D], of the texts, or of the first of each pair.
            v: [n, D], of the second; None for texts.

        Raises:
            ConfigError: vectors of another shape, or one side of the pairs is missing.
        """
        first = np.asarray(u, dtype=np.float64)
        second = None if v is None else np.asarray(v, dtype=np.float64)
        if (second is not None) != self.takes_pairs:
            needs = "pairs of texts" if self.takes_pairs else "single texts"
            raise ConfigError(f"the head {self.name!r} takes {needs}")
        for side in (first, second):
            if side is not None and side.shape != (len(first), self.dimension):
                raise ConfigError(
                    f"the head {self.name!r} takes vectors [n, {self.dimension}], got {side.shape}"
                )
        if self.kind == "classifier":
            return self._classify(first if second is None else self._join(first, second))
        return self._compare(first, cast(Floats, second))

    def _join(self, u: Floats, v: Floats) -> Floats:
        parts = {"u": u, "v": v, "|u-v|": np.abs(u - v), "u*v": u * v}
        return np.concatenate([parts[name] for name in self.features], axis=1)

    def _linear(self, x: Floats) -> Floats:
        return np.asarray(x @ self.weight.T.astype(np.float64) + self.bias)

    def _classify(self, x: Floats) -> Predictions:
        logits = self._linear(x)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        return Predictions([self.labels[i] for i in scores.argmax(axis=1)], scores)

    def _compare(self, u: Floats, v: Floats) -> Predictions:
        a, b = self._linear(u), self._linear(v)
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines = np.einsum("ne,ne->n", a, b) / np.maximum(norms, 1e-30)
        scores = np.maximum(cosines, self.hinge)
        if self.scale is not None:
            low, high = self.scale
            scores = low + (scores - self.hinge) / (1 - self.hinge) * (high - low)
            return Predictions([None] * len(scores), scores)
        positive = scores >= (1 + self.hinge) / 2
        return Predictions([self.labels[int(i)] for i in positive], scores)

    def _problem(self) -> str | None:
        """What is wrong with its fields; None where nothing is."""
        out, size = self.weight.shape if self.weight.ndim == 2 else (0, 0)
        parts = max(1, len(self.features))
        checks = [
            (bool(_NAME.fullmatch(self.name)), "a name is lower case letters, digits, - and _"),
            (self.kind in get_args(HeadKind), f"the kind {self.kind!r} is unknown"),
            (set(self.features) <= set(FEATURES), f"features {self.features!r} are unknown"),
            (out > 0 and size > 0 and size % parts == 0, f"weights {self.weight.shape}"),
            (self.bias.shape == (out,), f"a bias {self.bias.shape} with {out} outputs"),
            (self.kind != "classifier" or len(self.labels) == out >= 2, "a label for each output"),
            (self.kind != "cosine-classifier" or len(self.labels) == 2, "two labels"),
            (self.kind != "cosine-regressor" or self.scale is not None, "a scale is needed"),
            (-1 <= self.hinge < 1, f"the hinge must be in -1 .. 1, got {self.hinge}"),
            (bool(np.isfinite(self.weight).all() and np.isfinite(self.bias).all()), "NaN in it"),
        ]
        return next((f"expected: {said}" for holds, said in checks if not holds), None)


@dataclass(frozen=True, slots=True)
class Heads:
    """The task heads of one encoder.

    Attributes:
        dimension: length D of the vectors that they take.
        pooling: of those vectors.
        by_name: name -> head.
    """

    dimension: int
    pooling: str
    by_name: dict[str, TaskHead]

    @staticmethod
    def present(folder: Path) -> bool:
        """Whether a bundle or tuned folder has heads."""
        return (folder / Layout.heads).is_file()

    @classmethod
    def read(cls, folder: Path) -> Heads:
        """Read the heads of a bundle or tuned folder.

        Raises:
            BundleError: it has none, or they cannot be read.
            BundleVersionError: they are of a newer version.
        """
        path = folder / Layout.heads
        if not cls.present(folder):
            raise BundleError(
                f"{folder} has no task heads: mirror-rt multitask and mirror-rt burt tune some, "
                "and mirror-rt export keeps them"
            )
        values = read_document(
            path, noun="folder of heads", expected="mirror_rt heads", version=HEADS_VERSION
        )
        try:
            heads = {
                str(name): _read_head(path.parent, str(name), fields)
                for name, fields in values["heads"].items()
            }
            read = cls(int(values["dimension"]), str(values["pooling"]), heads)
            if wrong := [h.name for h in heads.values() if h.dimension != read.dimension]:
                raise ValueError(f"the head {wrong[0]!r} takes vectors of another length")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(f"{path} is damaged: {error}") from error
        return read

    def write(self, folder: Path) -> None:
        """Write them into a folder that is being made.

        Raises:
            OSError: the disk is full.
        """
        path = folder / Layout.heads
        path.parent.mkdir()
        for name, head in self.by_name.items():
            with (path.parent / f"{name}.npz").open("wb") as file:
                np.savez(file, weight=head.weight, bias=head.bias)
        described = {
            name: {
                "kind": head.kind,
                "labels": list(head.labels),
                "features": list(head.features),
                "hinge": head.hinge,
                "scale": None if head.scale is None else list(head.scale),
            }
            for name, head in self.by_name.items()
        }
        document = {"format": "mirror_rt heads", "format_version": HEADS_VERSION}
        own = {"dimension": self.dimension, "pooling": self.pooling, "heads": described}
        write_json(path, document | own)

    def get(self, name: str | None = None) -> TaskHead:
        """The head of that name; None for the only one.

        Raises:
            ConfigError: there is none of that name, or several and no name.
        """
        if name is None and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if name not in self.by_name:
            asked = "name the head" if name is None else f"no head {name!r}"
            raise ConfigError(f"{asked}: there are {', '.join(self.by_name)}")
        return self.by_name[name]


def _read_head(folder: Path, name: str, fields: dict[str, Any]) -> TaskHead:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a head")
    scale = fields.get("scale")
    if not is_a(fields.get("hinge"), int | float) or not math.isfinite(fields["hinge"]):
        raise ValueError(f"head {name!r}: hinge is {fields.get('hinge')!r}, expected a number")
    weights = _read_arrays(folder / f"{name}.npz")
    return TaskHead(
        name,
        fields["kind"],
        weights["weight"].astype(np.float32),
        weights["bias"].astype(np.float32),
        labels=tuple(map(str, fields["labels"])),
        features=tuple(map(str, fields["features"])),
        hinge=float(fields["hinge"]),
        scale=None if scale is None else (float(scale[0]), float(scale[1])),
    )


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in ("weight", "bias")}
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
