"""InfoNCE with the rows of view 1 alone as anchors: L_mirror of BERT-CF (Hu, section 4.1).

The candidates of string i's row of view 1 are its own row of view 2, the positive, and both rows of
every other string: 2N - 1 in all. `ntxent` of `mirror_train.infonce` also has the rows of view 2 as
anchors, and `one_way` leaves out the candidates of view 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mirror_train.loss.checks import check_inputs


def first_view(
    z1: Tensor, z2: Tensor, *, temperature: float, group_ids: Tensor | None = None
) -> Tensor:
    """Contrast each row of view 1 with all other rows; BERT-CF's batches of 16 need no kernel.

    The arguments are those of `mirror_train.infonce`.

    Returns:
        The mean over the N anchors of -ln(softmax at the positive), a scalar in float32 (float64
        for float64 input).

    Raises:
        ValueError: shapes, dtypes, devices or ids cannot be used, or there are no negatives.
    """
    check_inputs(z1, z2, None, group_ids, alone=True)
    ids = torch.arange(len(z1), device=z1.device) if group_ids is None else group_ids
    with torch.autocast(z1.device.type, enabled=False):
        dtype = torch.float64 if z1.dtype == torch.float64 else torch.float32
        a, b = (functional.normalize(z.to(dtype), dim=1) for z in (z1, z2))
        same = ids[:, None] == ids
        positive = torch.eye(len(z1), dtype=torch.bool, device=z1.device)
        cosines = torch.cat([a @ b.T, a @ a.T], dim=1)
        left_out = torch.cat([same & ~positive, same], dim=1)
        logits = (cosines / temperature).masked_fill(left_out, -torch.inf)
        return functional.cross_entropy(logits, torch.arange(len(z1), device=z1.device))
