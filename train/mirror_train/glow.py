"""The import path of `Flow` that modules.json files name, so it must not move with the code."""

from mirror_train.model.glow import Flow

__all__ = ["Flow"]
