"""Set every dropout of a model to one rate (EMNLP 2021, section 2.2 and Table 12)."""

from __future__ import annotations

from typing import Any

# Dropout in heads that an encoder does not have, and layer dropout, which is another technique.
_NOT_FEATURE_DROPOUT = ("classifier_dropout", "summary_last_dropout", "layerdrop")


def dropout_fields(config: Any) -> list[str]:
    """Return the names of the configuration's dropout rates, for example hidden_dropout_prob."""
    return sorted(
        name
        for name, value in config.to_dict().items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name.endswith(("dropout", "dropout_prob", "pdrop"))
        and name not in _NOT_FEATURE_DROPOUT
    )


def set_dropout(config: Any, rate: float) -> None:
    """Set every dropout rate of a model configuration, before the model is built from it.

    Setting the configuration also reaches the dropout inside fused attention, which has no module.
    """
    for name in dropout_fields(config):
        setattr(config, name, rate)
