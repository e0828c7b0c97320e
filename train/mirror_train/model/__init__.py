"""Load a pretrained encoder and put pooling, heads and dropout on it."""
