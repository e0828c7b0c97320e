"""Hyper-parameters of tuning as data, a TOML file each."""
