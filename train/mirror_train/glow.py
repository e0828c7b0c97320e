"""The place of `Flow` that modules.json of a folder names; it may not follow the code."""

from mirror_train.model.glow import Flow

__all__ = ["Flow"]
