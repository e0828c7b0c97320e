"""Search by measured loss for the layers to leave in float32 when int8 loses too much."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from mirror_export.graph.int8 import SWITCH
from mirror_export.graph.probe import Probe, run_batch
from mirror_export.parity import Gate
from mirror_rt.encoding.batch_encoder import Vectors

logger = logging.getLogger("mirror_export")

# Each layer alone is measured over only every so many batches: enough to rank the layers.
_EVERY = 6


def sensitive_layers(
    model: ir.Model, layers: list[str], probe: Probe, expected: Vectors, gate: Gate
) -> list[str]:
    """Find layers that, kept in float32, bring the rest of the graph within the gate.

    First each layer alone is kept in float32, over some of the texts, which ranks the layers. Then
    as many as it takes are kept, the most helpful first; bisection over all texts finds their
    number. Since a text's vector does not depend on the batch, the loss measured here is that of
    the graph without switches. The result does not depend on the speed of the machine.

    The graph has a switch for each of the `layers`, as `quantize` makes them. `expected` are
    PyTorch's unit vectors of the probe's texts, float32 [n, D]; only the gate's cosines count.
    """
    session = probe.session(model)
    exact = expected.astype(np.float64)

    def loss(kept: Collection[int], every: int = 1) -> float:
        """Measure how far cosines are from 1, as a fraction of what the gate allows.

        The layers `kept` are in float32; one batch in `every` is run.
        """
        switch = np.ones(len(layers), bool)
        switch[list(kept)] = False
        cosines = []
        for batch, rows in list(zip(probe.batches, probe.rows, strict=True))[::every]:
            (found,) = run_batch(session, batch, ["sentence_embedding"], {SWITCH: switch})
            cosines.append(np.einsum("nd,nd->n", exact[rows], found))
        cosine = np.concatenate(cosines)
        mean = (1 - cosine.mean()) / (1 - (gate.mean_cosine or 0))
        worst = (1 - cosine.min()) / (1 - (gate.min_cosine or 0))
        return float(np.nan_to_num(max(mean, worst), nan=np.inf))

    logger.info("int8: loss %.2f of what is allowed; looking for sensitive layers", loss(()))
    alone = [loss((i,), _EVERY) for i in range(len(layers))]
    order = sorted(range(len(layers)), key=alone.__getitem__)
    count = bisect.bisect_left(range(len(order)), True, key=lambda n: loss(order[:n]) <= 1)
    return [layers[i] for i in sorted(order[:count])]
