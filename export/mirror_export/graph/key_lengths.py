"""Give the attention of a padded graph the lengths of the texts in place of a mask by token.

onnxruntime has fused kernels of its `Attention` for lengths (cuDNN's on compute capability 9.0 and
above, TensorRT's before), and computes a mask by token, which may hide any tokens, without one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from mirror_export.graph.graph_edit import constant

# The number of the input that is the mask.
_MASKS = {"Attention": 3, "MultiHeadAttention": 4}


def use_key_lengths(model: ir.Model) -> None:
    """Replace every mask int32 [batch, length] of an attention by its sum over the tokens.

    Both say the same of texts that are padded on the right.
    """
    lengths: dict[ir.Value, ir.Value] = {}
    for node in [node for node in model.graph if node.op_type in _MASKS]:
        place = _MASKS[node.op_type]
        mask = node.inputs[place]
        assert mask is not None  # mirror_export.graph.attention always gives one
        if mask not in lengths:
            tape = ir.tape.Tape()
            axis = constant(model.graph, "lengths.axis", np.array([1]))
            total = tape.op("ReduceSum", [mask, axis], {"keepdims": 0})
            total.dtype, total.shape = ir.DataType.INT32, ir.Shape((mask.shape or [None])[:1])
            model.graph.insert_before(node, tape.nodes)
            lengths[mask] = total
        node.replace_input_with(place, lengths[mask])
