"""Make the ONNX graph of an encoder: trace it, fuse its operators, derive its precisions."""
