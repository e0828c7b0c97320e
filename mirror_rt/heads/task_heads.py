"""Task heads: small layers on the vectors of texts, stored as data and applied by numpy.

A bundle may have heads in its folder `heads`: `heads.json` describes them, and NAME.npz holds the
weights of each. They take vectors as pooled, not normalised.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.json_document import read_document
from mirror_rt.bundle.manifest import Dimension, Layout
from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.io.atomic import write_json
from mirror_rt.schema import Rule, between, build, matching

HEADS_VERSION = 1

HeadKind = Literal["classifier", "regressor", "cosine-classifier", "cosine-regressor"]
# The features that can be made of the two vectors u and v of a pair.
FEATURES = ("u", "v", "|u-v|", "u*v")

Floats = npt.NDArray[np.float64]
HEAD_NAME = matching(r"[a-z][a-z0-9_-]*", "a name of a head: lower case letters, digits, - and _")
_Number = Annotated[float, between(-1e30, 1e30)]
# The errors of numpy and zipfile for a damaged file of arrays.
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, SyntaxError,
               NotImplementedError, RuntimeError, zlib.error, zipfile.BadZipFile)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of a head for n texts or pairs."""

    # The class of each text or pair; None for a regressor, or if a text is unusable.
    labels: list[str | None]
    # float64; of a classifier [n, C], the probability of every class; else [n], the similarity that
    # decides, or the predicted value. NaN if a text is unusable.
    scores: Floats


@dataclass(frozen=True, slots=True)
class TaskHead:
    """A linear layer on the vector of a text, or on those of a pair, and the use of its output."""

    name: str  # name of the task
    # `classifier` (softmax over classes), `regressor` (the mean of the whole numbers of `scale`,
    # weighed by a softmax over them), `cosine-classifier` or `cosine-regressor` (the cosine of the
    # two projected vectors of a pair, at least `hinge`).
    kind: HeadKind
    weight: npt.NDArray[np.float32]  # float32 [out, in]
    bias: npt.NDArray[np.float32]  # float32 [out]
    labels: tuple[str, ...] = ()  # names of the C classes; none for a regressor
    # For a softmax over pairs, the `FEATURES` that are joined; empty for texts.
    features: tuple[str, ...] = ()
    # Cosines below the hinge are raised to it. A cosine-classifier predicts its second class from
    # the middle between the hinge and 1 upwards.
    hinge: float = 0.0
    # For a `regressor` the least and the greatest number, for a `cosine-regressor` the values that
    # the similarities `hinge` and 1 stand for.
    scale: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise ValueError(f"head {self.name!r}: {problem}")

    @property
    def takes_pairs(self) -> bool:
        """Tell whether the head is applied to pairs of texts."""
        return self.kind.startswith("cosine") or bool(self.features)

    @property
    def dimension(self) -> int:
        """The length D of the vectors that the head takes."""
        return int(self.weight.shape[1]) // max(1, len(self.features))

    def __call__(self, u: npt.ArrayLike, v: npt.ArrayLike | None = None) -> Predictions:
        """Apply the head to vectors as pooled.

        Args:
            u: [n, D], vectors of the texts, or of the first text of each pair.
            v: [n, D], vectors of the second text of each pair; None for single texts.
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
        if self.kind.startswith("cosine"):
            return self._compare(first, cast(Floats, second))
        scores = self._softmax(first if second is None else self._join(first, second))
        if self.scale is not None:
            low, high = self.scale
            numbers = np.linspace(low, high, len(self.bias))
            return Predictions([None] * len(scores), scores @ numbers)
        return Predictions([self.labels[i] for i in scores.argmax(axis=1)], scores)

    def _join(self, u: Floats, v: Floats) -> Floats:
        parts = {"u": u, "v": v, "|u-v|": np.abs(u - v), "u*v": u * v}
        return np.concatenate([parts[name] for name in self.features], axis=1)

    def _linear(self, x: Floats) -> Floats:
        return np.asarray(x @ self.weight.T.astype(np.float64) + self.bias)

    def _softmax(self, x: Floats) -> Floats:
        logits = self._linear(x)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))

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
        """Return the fault of the fields, or None."""
        out, size = self.weight.shape if self.weight.ndim == 2 else (0, 0)
        parts = max(1, len(self.features))
        numbers = 0 if self.scale is None else self.scale[1] - self.scale[0] + 1
        checks = [
            (HEAD_NAME.holds(self.name), HEAD_NAME.expected),
            (self.kind in get_args(HeadKind), f"the kind {self.kind!r} is unknown"),
            (set(self.features) <= set(FEATURES), f"features {self.features!r} are unknown"),
            (out > 0 and size > 0 and size % parts == 0, f"weights {self.weight.shape}"),
            (self.bias.shape == (out,), f"a bias {self.bias.shape} with {out} outputs"),
            (self.kind != "classifier" or len(self.labels) == out >= 2, "a label for each output"),
            (self.kind != "cosine-classifier" or len(self.labels) == 2, "two labels"),
            (self.kind != "cosine-regressor" or self.scale is not None, "a scale is needed"),
            (self.kind != "regressor" or numbers == out, "an output for each number"),
            ("classifier" not in self.kind or self.scale is None, "a scale is for regressors"),
            (-1 <= self.hinge < 1, f"the hinge must be in -1 .. 1, got {self.hinge}"),
            (bool(np.isfinite(self.weight).all() and np.isfinite(self.bias).all()), "NaN in it"),
        ]
        return next((f"expected: {said}" for holds, said in checks if not holds), None)


@dataclass(frozen=True, slots=True)
class Heads:
    """The task heads of one encoder."""

    dimension: int  # length D of the vectors that the heads take
    pooling: str  # pooling of those vectors
    by_name: dict[str, TaskHead]  # name -> head

    @staticmethod
    def present(folder: Path) -> bool:
        """Return whether a bundle or tuned folder has heads."""
        return (folder / Layout.heads).is_file()

    @classmethod
    def read(cls, folder: Path) -> Heads:
        """Read the heads of a bundle or tuned folder."""
        path = folder / Layout.heads
        if not cls.present(folder):
            raise BundleError(
                f"{folder} has no task heads: mirror-rt train finetune, multitask and burt "
                "tune some, and mirror-rt export keeps them"
            )

        def make(values: dict[str, Any]) -> Heads:
            read: _Document = build(_Document, values)
            heads = {
                name: _read_head(path.parent, name, described)
                for name, described in read.heads.items()
            }
            if wrong := [h.name for h in heads.values() if h.dimension != read.dimension]:
                raise ValueError(f"the head {wrong[0]!r} takes vectors of another length")
            return cls(read.dimension, read.pooling, heads)

        expected = ("mirror_rt heads",)
        return read_document(
            path, make, noun="folder of heads", expected=expected, version=HEADS_VERSION
        )

    def write(self, folder: Path) -> None:
        """Write the heads into a folder that is being made."""
        path = folder / Layout.heads
        path.parent.mkdir()
        for name, head in self.by_name.items():
            with (path.parent / f"{name}.npz").open("wb") as file:
                np.savez(file, weight=head.weight, bias=head.bias)
        described = {
            name: _Described(**{each.name: getattr(head, each.name) for each in fields(_Described)})
            for name, head in self.by_name.items()
        }
        document = {"format": "mirror_rt heads", "format_version": HEADS_VERSION}
        write_json(path, document | asdict(_Document(self.dimension, self.pooling, described)))

    def get(self, name: str | None = None) -> TaskHead:
        """Return the head of that name; None for the only one."""
        if name is None and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if name not in self.by_name:
            asked = "name the head" if name is None else f"no head {name!r}"
            raise ConfigError(f"{asked}: there are {', '.join(self.by_name)}")
        return self.by_name[name]


@dataclass(frozen=True, slots=True)
class _Described:
    """The description of a head in heads.json; see `TaskHead`."""

    kind: HeadKind
    labels: list[str]
    features: list[str]
    hinge: Annotated[float, between(-1, 1)]
    scale: Annotated[list[_Number], Rule("two", lambda ends: len(ends) == 2)] | None = None


@dataclass(frozen=True, slots=True)
class _Document:
    """The content of heads.json."""

    dimension: Dimension
    pooling: str
    heads: dict[Annotated[str, HEAD_NAME], _Described]


def _read_head(folder: Path, name: str, described: _Described) -> TaskHead:
    values = asdict(described) | _read_arrays(folder / f"{name}.npz")
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return TaskHead(name, **values | lists)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if sum(one.file_size for one in arrays.zip.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed, or larger than its file")
            return {name: arrays[name].astype(np.float32) for name in ("weight", "bias")}
    except _UNREADABLE as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    except MemoryError as error:  # the header of a damaged file may give any shape
        raise BundleError(f"{path} cannot be read: it needs too much memory") from error
