"""Leave the first layers of a model, and its embeddings, as they are."""

from __future__ import annotations

from torch import nn

from mirror_rt.errors import ConfigError, Setting


def freeze_layers(model: nn.Module, count: int) -> None:
    """Train only the layers after the first `count`; 0 trains the whole model.

    Raises:
        ConfigError: the model has no list of layers, or not more than `count` of them.
    """
    model.requires_grad_(True)
    if not count:
        return
    number = getattr(model.config, "num_hidden_layers", 0)
    lists = (one for one in model.modules() if isinstance(one, nn.ModuleList))
    layers = next((one for one in lists if len(one) == number > count), None)
    if layers is None:
        raise ConfigError(
            Setting("frozen_layers"),
            f" is {count}, and {type(model).__name__} has {number} layers, of which "
            "one at least has to be trained",
        )
    model.requires_grad_(False)
    layers[count:].requires_grad_(True)
