"""Tune an encoder: the settings of a run, the training loop, checkpoints and the output folder."""
