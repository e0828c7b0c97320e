"""What an implementation of InfoNCE provides: five steps over blocks of rows.

The loss (`mirror_train.loss.autograd`) is these steps in order, on one process or several; the
implementations differ in nothing else. With x^ for a row x of unit length, scale = 1 / temperature
and s_ij = scale * x^_i . y^_j:

1. `normalize`   rows to unit length.
2. `logsumexp`   n_i = logsumexp of s_ij over the negatives j of row i.
3. `objective`   the loss from n_i and the positive's s+_i, and what its gradient needs:
                 g_i = d loss_i / d (n_i - s+_i) and a_i = ln g_i - n_i.
4. `contract`    sums_i = sum over negatives j of W_ij y^_j, with
                 W_ij = exp(s_ij + a_i) + exp(s_ij + b_j).
                 No exponent exceeds 0: n_i is at least s_ij for every negative, and g_i at most 1.
5. `finish`      from the gradient of unit rows to that of the input.

Steps 2 and 4 cost O(rows * columns * D) time and may hold O(rows + columns) values at once; the
others cost O(rows * D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

__all__ = ["Kernel", "Negatives", "Objective", "Pairs", "Variant"]

Variant = Literal["ntxent", "decoupled", "one_way"]
RowsT = TypeVar("RowsT")


@dataclass(frozen=True, slots=True)
class Negatives:
    """Which columns are negatives of which rows.

    The first `n_rows` rows and `n_columns` columns belong to a string, those after them (hard
    negatives) to none. A column is a negative of a row unless both belong to the same string, or
    to strings of one group.

    Attributes:
        n_rows: rows that belong to a string; these are the rows that have a loss.
        n_columns: columns that belong to a string.
        period: without ids, row or column i belongs to string i % period.
        row_ids: int64 [n_rows], contiguous, or None. Equal ids are never negatives.
        column_ids: int64 [n_columns], contiguous; None exactly when `row_ids` is.
    """

    n_rows: int
    n_columns: int
    period: int
    row_ids: Tensor | None = None
    column_ids: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Pairs:
    """The positive of row i < count is row (i + shift) % count of the partners.

    Attributes:
        count: rows that have a positive.
        shift: see above.
        mutual: the partner's own loss counts the row as its positive too.
    """

    count: int
    shift: int
    mutual: bool


class Objective(NamedTuple):
    """The loss, and its derivative by every row's margin.

    Attributes:
        loss: 0-dim float32 (float64 for float64 input).
        weights: [count], g_i; 0 for a row without negatives.
        log_weights: [count], a_i = ln g_i - n_i; -inf where g_i is 0.
    """

    loss: Tensor
    weights: Tensor
    log_weights: Tensor


class Kernel(Protocol[RowsT]):
    """An implementation. Nothing here may wait for a device; results are the same on every call.

    `RowsT` is the implementation's own form of normalised rows. `columns is rows` (the same
    object) tells that the problem is symmetric, with `negatives` the same on both sides.
    """

    def normalize(self, blocks: Sequence[Tensor]) -> RowsT:
        """Rows of `blocks` (each [n_b, D], contiguous, one dtype and device), one after another.

        A row x becomes x / max(||x||, 1e-12).
        """
        ...

    def logsumexp(
        self, rows: RowsT, columns: RowsT, negatives: Negatives, *, scale: float
    ) -> Tensor:
        """n_i of the first `negatives.n_rows` rows, [n_rows]; -inf for a row without negatives."""
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
        """`factor` times the sum over the rows of softplus(u_i) (decoupled: u_i), u = n - s+."""
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
        """The weighted sums of step 4.

        Args:
            rows: [R] rows.
            columns: [C] columns.
            negatives: as for `logsumexp`.
            row_log_weights: a [n_rows]; None, and rows past n_rows, for -inf.
            column_log_weights: b [n_columns]; None, and columns past n_columns, for -inf. In the
                symmetric case the same tensor as `row_log_weights`.
            scale: 1 / temperature.
            both: also the sums of the columns, sum over i of W_ij x^_i; not in the symmetric
                case, where they are the same sums.

        Returns:
            Sums of the rows [R, D] and, with `both`, of the columns [C, D]. Their layout may be
            the implementation's own: `finish` alone reads them.
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
        """Gradients of the blocks of `rows`, in their shapes and dtype.

        G_i = sums_i - w_i * (partner of i), the second term for i < pairs.count alone, w_i being
        weights_i, plus the partner's weight if the pairs are mutual;
        the gradient is factor * grad_output * (G_i - x^_i (x^_i . G_i)) / max(||x_i||, 1e-12),
        and for a row shorter than 1e-12, whose norm the clamp holds constant, without the
        projection.
        """
        ...
