"""The interface of an implementation of InfoNCE: five steps over blocks of rows.

The loss (`mirror_train.loss.autograd`) runs these steps in order, in one process or several; the
implementations differ only in how they compute them. With x^ for a row x scaled to unit length,
scale = 1 / temperature and s_ij = scale * x^_i . y^_j:

1. `normalize`   scales rows to unit length.
2. `logsumexp`   computes n_i = logsumexp of s_ij over the negatives j of row i.
3. `objective`   computes the loss from n_i and the positive's score s+_i, and for its gradient
                 g_i = d loss_i / d (n_i - s+_i) and a_i = ln g_i - n_i.
4. `contract`    computes sums_i = sum over negatives j of W_ij y^_j, with
                 W_ij = exp(s_ij + a_i) + exp(s_ij + b_j), where b_j is the log weight that column
                 j has as a row. No exponent exceeds 0: n_i is at least s_ij for every negative,
                 and g_i is at most 1.
5. `finish`      turns the gradient of the unit rows into that of the input.

Steps 2 and 4 cost O(rows * columns * D) time and may hold O(rows + columns) values at once; the
others cost O(rows * D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

Variant = Literal["ntxent", "decoupled", "one_way"]
RowsT = TypeVar("RowsT")


@dataclass(frozen=True, slots=True)
class Negatives:
    """The rule that says which columns are negatives of which rows.

    The first `n_rows` rows and `n_columns` columns belong to a string; those after them (hard
    negatives) belong to none. A column is a negative of a row unless both belong to the same
    string, or to strings of one group.

    Attributes:
        n_rows: number of rows that belong to a string; these rows have a loss.
        n_columns: number of columns that belong to a string.
        period: without ids, row or column i belongs to string i % period.
        row_ids: int64 [n_rows], contiguous, or None. A row and a column with equal ids are never
            negatives.
        column_ids: int64 [n_columns], contiguous; None exactly when `row_ids` is.
    """

    n_rows: int
    n_columns: int
    period: int
    row_ids: Tensor | None = None
    column_ids: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Pairs:
    """The rule that the positive of row i < count is row (i + shift) % count of the partners.

    Attributes:
        count: number of rows that have a positive.
        shift: distance from a row to its positive, as above.
        mutual: whether the partner has a loss too, of which the row is the positive.
    """

    count: int
    shift: int
    mutual: bool


class Objective(NamedTuple):
    """The loss, and its derivative with respect to every row's margin n_i - s+_i.

    Attributes:
        loss: 0-dim float32 (float64 for float64 input).
        weights: [count], g_i; 0 for a row without negatives.
        log_weights: [count], a_i = ln g_i - n_i; -inf where g_i is 0.
    """

    loss: Tensor
    weights: Tensor
    log_weights: Tensor


class Inputs(NamedTuple):
    """This process's z1, z2 [N, D], hard negatives [H, D] or None, and int64 ids [N] or None."""

    z1: Tensor
    z2: Tensor
    hard: Tensor | None
    ids: Tensor | None


class Passes(Protocol):
    """The passes of the loss in one process, each in one call.

    They compute what the five steps do. A kernel has them where the time of the calls counts.
    """

    def forward(self, inputs: Inputs, *, scale: float, variant: Variant) -> Objective:
        """Return the mean loss and the weights of its gradient; inputs must be contiguous."""
        ...

    def backward(
        self,
        inputs: Inputs,
        weights: Tensor,
        log_weights: Tensor,
        grad_output: Tensor,
        *,
        scale: float,
        variant: Variant,
    ) -> list[Tensor]:
        """Return the gradients of z1, z2 and, if there are any, the hard negatives."""
        ...


class Kernel(Protocol[RowsT]):
    """An implementation of the five steps, which never waits for a device and is deterministic.

    `RowsT` is the implementation's own representation of normalised rows. If `columns is rows` (the
    same object), the problem is symmetric, and `negatives` is the same on both sides.
    """

    @property
    def passes(self) -> Passes | None:
        """The passes in one call each, or None if there are only the steps."""
        ...

    def normalize(self, blocks: Sequence[Tensor]) -> RowsT:
        """Return the normalised rows of `blocks`, one block after another.

        Each block is contiguous [n_b, D]; all have one dtype and device. A row x becomes
        x / max(||x||, 1e-12).
        """
        ...

    def logsumexp(
        self, rows: RowsT, columns: RowsT, negatives: Negatives, *, scale: float
    ) -> Tensor:
        """Return n_i of the first n_rows rows, [n_rows]; -inf for a row without negatives."""
        ...

    def objective(
        self,
        rows: RowsT,
        partners: RowsT,
        pairs: Pairs,
        n: Tensor,
        *,
        scale: float,
        variant: Variant,
        factor: float,
    ) -> Objective:
        """Return `factor` times the sum of the rows' losses, and the weights of their gradient.

        The loss of row i is softplus(u_i), or u_i if the variant is decoupled, with u = n - s+.
        """
        ...

    def contract(
        self,
        rows: RowsT,
        columns: RowsT,
        negatives: Negatives,
        row_log_weights: Tensor | None,
        column_log_weights: Tensor | None,
        *,
        scale: float,
        both: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the weighted sums of step 4.

        Args:
            rows: R rows.
            columns: C columns.
            negatives: as for `logsumexp`.
            row_log_weights: a [n_rows]. None stands for -inf, which rows past n_rows have too.
            column_log_weights: b [n_columns]. None stands for -inf, which columns past n_columns
                have too. In the symmetric case it is the same tensor as `row_log_weights`.
            scale: 1 / temperature.
            both: whether to return the sums of the columns too, sum over i of W_ij x^_i; not
                allowed in the symmetric case, where they are the same sums.

        Returns:
            The sums of the rows [R, D] and, with `both`, of the columns [C, D]. The layout is up
            to the implementation, because only its `finish` reads them.
        """
        ...

    def finish(
        self,
        sums: Tensor,
        rows: RowsT,
        partners: RowsT,
        pairs: Pairs,
        weights: Tensor,
        *,
        factor: float,
        grad_output: Tensor,
    ) -> list[Tensor]:
        """Return the gradients of the blocks of `rows`, in their shapes and dtype.

        G_i = sums_i - w_i * (partner of i), where w_i is weights_i, plus the partner's weight if
        the pairs are mutual; the second term is only there for i < pairs.count. The gradient is
        factor * grad_output * (G_i - x^_i (x^_i . G_i)) / max(||x_i||, 1e-12). For a row shorter
        than 1e-12 the norm is clamped to a constant, so the projection term x^_i (x^_i . G_i) is
        left out.
        """
        ...
