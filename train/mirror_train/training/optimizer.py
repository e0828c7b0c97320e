"""AdamW for encoders of which a step reads few rows of a large table of words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim.adamw import adamw as adamw_step


class SparseAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) that takes the sparse gradients of tables, too.

    A row of a table gets the steps that dense gradients would give it, those in which its own is
    zero included, from its first gradient on. Rows that never have one are neither read nor
    written: they keep their weights, where the weight decay would shrink them by its product with
    the rate, and the optimiser holds nothing of them.

    Tables are float32 or float64 [rows, D]: torch loads an optimiser's state in the type of the
    weights, and the numbers of rows are a part of it.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make a step: of dense gradients as AdamW, of sparse ones by rows."""
        tables = [
            (table, table.grad.coalesce(), group)
            for group in self.param_groups
            for table in group["params"]
            if table.grad is not None and table.grad.is_sparse
        ]
        for table, _, _ in tables:
            table.grad = None  # torch's AdamW refuses it
        loss = super().step(closure)
        for table, gradient, group in tables:
            self._step_rows(table, gradient, group)
        return loss

    def _step_rows(self, table: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[table]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = table.new_zeros(2, 0, table.shape[1])
            state["rows"] = torch.empty(0)
        read = gradient.indices()[0]
        rows = state["rows"].long()  # torch loads an optimiser's state as numbers like the weights
        first = read[~torch.isin(read, rows)]
        rows = state["rows"] = torch.cat([rows, first])
        for moment in ("exp_avg", "exp_avg_sq"):
            state[moment] = pad(state[moment], (0, 0, 0, len(first)))
        places = torch.empty(len(table), dtype=torch.long)
        places[rows] = torch.arange(len(rows))
        dense = torch.zeros_like(state["exp_avg"])
        dense[places[read]] = gradient.values()
        weights = table[rows]
        beta1, beta2 = group["betas"]
        adamw_step(
            [weights], [dense], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]],
            fused=True, amsgrad=False, maximize=False, beta1=beta1, beta2=beta2, lr=group["lr"],
            weight_decay=group["weight_decay"], eps=group["eps"],
        )  # fmt: skip
        table[rows] = weights


def adamw(parameters: Iterable[Any], recipe: Any) -> SparseAdamW:
    """Return AdamW of some parameters, or groups of them, with the rates of a recipe."""
    rate, decay = recipe.learning_rate, recipe.weight_decay
    return SparseAdamW(list(parameters), lr=rate, weight_decay=decay, fused=True)
