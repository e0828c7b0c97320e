"""Run a graph with onnxruntime: providers, devices, sessions, threads."""
