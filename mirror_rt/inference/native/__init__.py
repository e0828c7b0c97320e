"""The engine in csrc/engine: runs encoders of the BERT family without onnxruntime or padding."""
