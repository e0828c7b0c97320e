"""OpenVINO in place of onnxruntime, with the same graphs."""
