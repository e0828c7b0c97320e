"""Labelled texts and pairs of texts, and a way to hold some of them out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_train.data.training_data import connected_groups

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Examples:
    """n texts, or pairs of texts, with the target of each."""

    first: list[str]  # n texts
    second: list[str] | None  # n texts, the other side of each pair; None for single texts
    targets: npt.NDArray[Any]  # int64 [n], indices of classes; or float64 [n], values
    labels: tuple[str, ...]  # names of the classes; empty for values
    source: str  # name of the file that they came from
    left_out: int = 0  # number of rows of the source that lack a label or a text

    def __len__(self) -> int:
        return len(self.first)

    def __add__(self, other: Examples) -> Examples:
        """Join two sets of examples, which must have the same classes."""
        second = None
        if self.second is not None and other.second is not None:
            second = self.second + other.second
        return Examples(
            self.first + other.first,
            second,
            np.concatenate([self.targets, other.targets]),
            self.labels,
            f"{self.source}, {other.source}",
            self.left_out + other.left_out,
        )

    def take(self, rows: Sequence[int] | Rows) -> Examples:
        """Return the examples of the given rows, in their order."""
        return dataclasses.replace(
            self,
            first=[self.first[row] for row in rows],
            second=None if self.second is None else [self.second[row] for row in rows],
            targets=self.targets[np.asarray(rows, dtype=np.int64)],
        )

    def top(self, count: int | None) -> Examples:
        """Return the first `count` examples; all for None."""
        return self if count is None or count >= len(self) else self.take(range(count))

    def items(self) -> list[Any]:
        """Return the texts, or the pairs as tuples."""
        if self.second is None:
            return list(self.first)
        return list(zip(self.first, self.second, strict=True))

    def check_classes(self) -> None:
        """Raise DataError for a class that never occurs: no head could learn it."""
        present = set(self.targets.tolist())
        if absent := [name for i, name in enumerate(self.labels) if i not in present]:
            raise DataError(
                f"{self.source}: none of its {len(self)} rows has the label {absent[0]!r}, which "
                "could never be learnt: give rows with it, or more rows"
            )

    def scale(self) -> tuple[float, float]:
        """Return the whole numbers that values lie between."""
        low, high = float(np.floor(self.targets.min())), float(np.ceil(self.targets.max()))
        if low == high:
            raise DataError(f"all {len(self)} rows of {self.source} have the value {low:g}")
        return low, high

    def sha256(self) -> str:
        """Return a hash of the texts and targets in order, which does not depend on the file."""
        digest = hashlib.sha256()
        for item, target in zip(self.items(), self.targets.tolist(), strict=True):
            digest.update(f"{item!r}\t{target!r}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return the record of the examples in mirror.json."""
        return {
            "source": self.source,
            "sha256": self.sha256(),
            "rows": len(self),
            "left_out": self.left_out,
        }


def held_out(examples: Examples, share: float, *, seed: int) -> tuple[Examples, Examples]:
    """Hold out about a `share` of the rows at random, and keep the others.

    Rows that share a text, directly or through others, stay together. Both parts are in their old
    order.
    """
    sides = zip(examples.first, examples.second or examples.first, strict=True)
    groups = np.array(connected_groups(list(sides)))
    wanted = round(share * len(examples))
    order = np.random.default_rng([seed, 3]).permutation(groups.max() + 1)
    sizes = np.bincount(groups)[order]
    # Only whole groups that fit into the wanted number are held out, so a huge group is kept.
    chosen, total = [], 0
    for group, size in zip(order.tolist(), sizes.tolist(), strict=True):
        if total + size <= wanted:
            chosen.append(group)
            total += size
    out = np.isin(groups, chosen)
    if not 0 < total < len(examples):
        raise DataError(
            f"{examples.source}: its {len(examples)} rows cannot be split, as they share texts or "
            "are too few: give a file of its own to evaluate on"
        )
    source = examples.source
    rest, held = examples.take(np.flatnonzero(~out)), examples.take(np.flatnonzero(out))
    return (
        dataclasses.replace(rest, source=f"{source} without {total} held out"),
        dataclasses.replace(held, source=f"{source}, {total} held out", left_out=0),
    )
