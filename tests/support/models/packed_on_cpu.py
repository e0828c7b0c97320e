"""Let the CPU run a float32 graph for CUDA: its attention as a function of ONNX's own operators."""

from __future__ import annotations

from pathlib import Path

import onnx

# Tokens that no text has become NaN, as numbers may be that an operator of CUDA never writes.
_ATTENTION = """
<domain: "test", opset_import: ["": 20]>
PackedMultiHeadAttention <num_heads, scale> (query, key, value, bias, offset, starts) => (out) {
  one = Constant <value_ints = [1]> ()
  all = Constant <value_ints = [-1]> ()
  keep = Constant <value_ints = [0]> ()
  heads = Constant <value_int: int = @num_heads> ()
  factor = Constant <value_float: float = @scale> ()
  heads1 = Reshape (heads, one)
  apart = Concat <axis = 0> (keep, heads1, all)
  tokens = Shape <start = 0, end = 1> (query)
  zero = Constant <value_int = 0> ()
  step = Constant <value_int = 1> ()
  last = Squeeze (tokens)
  place = Range (zero, last, step)
  begins = Cast <to = 7> (starts)
  column = Unsqueeze (begins, one)
  begun = LessOrEqual (column, place)
  counted = Cast <to = 7> (begun)
  text = ReduceSum <keepdims = 0> (counted, keep)
  texts = Shape (starts)
  real = Less (text, texts)
  texts_down = Unsqueeze (text, one)
  same = Equal (texts_down, text)
  seen = And (same, real)
  bq, bk, bv = Split <axis = 0, num_outputs = 3> (bias)
  q = Add (query, bq)
  k = Add (key, bk)
  v = Add (value, bv)
  q3 = Reshape (q, apart)
  k3 = Reshape (k, apart)
  v3 = Reshape (v, apart)
  qt = Transpose <perm = [1, 0, 2]> (q3)
  kt = Transpose <perm = [1, 2, 0]> (k3)
  vt = Transpose <perm = [1, 0, 2]> (v3)
  products = MatMul (qt, kt)
  scores = Mul (products, factor)
  never = Constant <value_float = -inf> ()
  masked = Where (seen, scores, never)
  weights = Softmax <axis = -1> (masked)
  real_down = Unsqueeze (real, one)
  nothing = Constant <value_float = 0.0> ()
  values = Where (real_down, vt, nothing)
  attended = MatMul (weights, values)
  joined = Transpose <perm = [1, 0, 2]> (attended)
  shape = Shape (query)
  out = Reshape (joined, shape)
}
"""


def write_packed_for_cpu(graph: Path, out: Path) -> None:
    """Write the padding-free graph `graph` with a function for the operator that only CUDA has."""
    model = onnx.load(graph)
    function = onnx.parser.parse_function(_ATTENTION)
    for node in model.graph.node:
        if node.op_type == function.name:
            node.domain = function.domain
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("test", 1))
    onnx.save(model, out)
