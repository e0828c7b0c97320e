"""Tune an encoder: recipes, the training loop, checkpoints, processes."""
