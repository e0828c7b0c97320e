"""Describe the part of InfoNCE that a process computes: its rows, and their columns.

With x^ for a row x scaled to unit length, scale = 1 / temperature and s_ij = scale * x^_i . y^_j, a
pass forward computes for every row i that has a loss, where s+_i is the score of its positive,

    n_i = logsumexp of s_ij over the negatives j of row i;  u_i = n_i - s+_i;
    loss_i = softplus(u_i), or u_i if the variant is decoupled;
    g_i = d loss_i / d u_i, its weight, and a_i = ln g_i - n_i, its log weight.

A pass back computes, of the rows and of the columns that they are contrasted with,

    sums_i = sum over negatives j of W_ij y^_j,  W_ij = exp(s_ij + a_i) + exp(s_ij + b_j),

where b_j is the log weight that column j has as a row. No exponent exceeds 0: n_i is at least s_ij
for every negative, and g_i is at most 1. With w_i, the weight g_i plus that of the partner if this
has a loss too, G_i = sums_i - w_i (partner of i) for rows that have a positive, and the gradient is

    factor * grad_output * (G_i - x^_i (x^_i . G_i)) / max(||x_i||, 1e-12).

For a row shorter than 1e-12 the norm is clamped to a constant, so the term x^_i (x^_i . G_i) is
left out. This takes O(rows * columns * D) time, and may hold O(rows + columns) values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from mirror_train.loss.kernel import Gathered, Inputs, Options

RowsT = TypeVar("RowsT")
Sums = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """The rows and columns of a process, each as blocks [n_b, D] that follow one another.

    The first `count` rows and `n_columns` columns belong to a string; those after them (hard
    negatives) belong to none. A column is a negative of a row unless both belong to the same
    string, or to strings of one group.
    """

    rows: list[Tensor]  # this process's rows, of which the first `count` have a loss
    partners: list[Tensor]  # the rows with their positives: `rows` itself, except in one_way
    columns: list[Tensor]  # the rows are contrasted with these: `partners` itself in one process
    # View 1 of all processes, for the gradient of one_way; None in one process.
    anchors: list[Tensor] | None
    count: int  # number of rows that have a loss
    total: int  # number of such rows in all processes
    shift: int  # the positive of row i < count is row (i + shift) % count of the partners
    n_columns: int  # number of columns that belong to a string
    period: int  # without ids, row or column i belongs to string i % period
    # int64 [count], contiguous, or None. A row and a column with equal ids are never negatives.
    row_ids: Tensor | None
    column_ids: Tensor | None  # int64 [n_columns], contiguous; None exactly when `row_ids` is
    scale: float  # 1 / temperature
    decoupled: bool  # whether only negatives are in the denominator
    gathered: Gathered | None  # the inputs of all processes; None for one process

    @classmethod
    def of(cls, inputs: Inputs, options: Options) -> Problem:
        """Return the problem of a process, whose inputs are contiguous."""
        gathered = options.gathered
        one_way, n = options.variant == "one_way", len(inputs.z1)
        rows, partners = _sides(inputs, one_way)
        columns, anchors, world, ids, every = partners, None, 1, inputs.ids, inputs.ids
        if gathered is not None:
            anchors, columns = _sides(gathered.inputs, one_way)
            world, ids, every = gathered.world_size, gathered.own_ids, gathered.ids
        views = 1 if one_way else 2
        row_ids = None if ids is None else ids.repeat(views)
        return cls(
            rows=rows,
            partners=partners,
            columns=columns,
            anchors=anchors if one_way else None,
            count=views * n,
            total=views * n * world,
            shift=0 if one_way else n,
            n_columns=views * n * world,
            period=n,
            row_ids=row_ids,
            column_ids=row_ids if every is ids or every is None else every.repeat(views),
            scale=options.scale,
            decoupled=options.variant == "decoupled",
            gathered=gathered,
        )

    @property
    def mutual(self) -> bool:
        """Tell whether the positives have losses too, of which the rows are the positives."""
        return self.partners is self.rows

    def normalized(self, normalize: Callable[[list[Tensor]], RowsT]) -> tuple[RowsT, RowsT, RowsT]:
        """Return rows, partners and columns, which are the same object where the blocks are."""
        rows = normalize(self.rows)
        partners = rows if self.mutual else normalize(self.partners)
        columns = partners if self.columns is self.partners else normalize(self.columns)
        return rows, partners, columns

    def weighted_sums(
        self,
        log_weights: Tensor,
        normalize: Callable[[list[Tensor]], RowsT],
        contract: Callable[[RowsT, RowsT, Tensor | None, Tensor | None, bool], Sums],
    ) -> Iterator[tuple[Tensor, RowsT, RowsT]]:
        """Yield the sums of rows that get gradients, these rows, and their partners.

        `contract(left, right, a, b, both)` returns the sums of `left` and, with `both`, those of
        `right`. No log weights stand for -inf, which rows past the strings have too.
        """
        rows, partners, columns = self.normalized(normalize)
        every = log_weights if self.gathered is None else self.gathered.log_weights
        both = not self.mutual and self.gathered is None
        b = every if self.mutual else None
        sums, others = contract(rows, columns, log_weights, b, both)
        yield sums, rows, partners
        if self.anchors is not None:
            others, _ = contract(partners, normalize(self.anchors), None, every, False)
        if others is not None:
            yield others, partners, rows


def _sides(inputs: Inputs, one_way: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Return the blocks of rows, and of their columns: both may be the same."""
    blocks = [z for z in inputs[:3] if z is not None]
    return (blocks[:1], blocks[1:]) if one_way else (blocks, blocks)
