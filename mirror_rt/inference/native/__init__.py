"""The engine in csrc/engine: runs the BERT family and ModernBERT without onnxruntime or padding."""
