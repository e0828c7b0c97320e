"""Turn texts into vectors: the encoder that users call and the pipeline behind it."""
