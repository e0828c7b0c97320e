"""Adapt encoders to Ray Data: `MirrorEmbedder` for `Dataset.map_batches`."""

from __future__ import annotations

import math
from typing import Any

from mirror_rt.adapters.lazy import TableAdapter
from mirror_rt.errors import ConfigError, importing
from mirror_rt.inference.providers import without_cards

with importing("ray", extra="ray", purpose="mirror_rt.adapters.ray"):
    import pyarrow as pa
    import ray


class MirrorEmbedder(TableAdapter):
    """Add a column of vectors to the batches of a Ray dataset, in actors that load once.

        dataset.map_batches(
            MirrorEmbedder,
            fn_constructor_args=["all-MiniLM-L6-v2"],
            batch_format="pyarrow",
            batch_size=4096,
            num_cpus=2,
            compute=ray.data.ActorPoolStrategy(size=8),
        )

    The `num_cpus` of an actor are the threads of its encoder, and its `num_gpus` the cards; options
    in `model_kwargs` have precedence. A vector is a list of fixed size; a text that cannot be
    encoded has a null. The arguments are those of `TableAdapter`.

    Raises:
        MirrorError: the model cannot be loaded.
    """

    def __post_init__(self) -> None:
        self.model_kwargs = assigned_resources() | dict(self.model_kwargs or {})
        super().__post_init__()
        self._encoding = self._table(self._lazy.local_encoder)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the rows of a batch with their vectors.

        Raises:
            ConfigError: the batch is no Arrow table.
            DataError: it has no column of texts with that name.
        """
        if not isinstance(batch, pa.Table):
            raise ConfigError(
                f"expected batches in the format of Arrow, got {type(batch).__name__}: pass "
                "batch_format='pyarrow' to map_batches"
            )
        made = self._encoding.encode(batch.combine_chunks().to_batches())
        return pa.Table.from_batches(made, self._encoding.schema(batch.schema))


def assigned_resources() -> dict[str, Any]:
    """Return the options of `Encoder.load` that use the resources of this task or actor of Ray.

    Ray shows a task the cards that are its own, numbered from 0, so `"cuda"` finds them.
    """
    if not ray.is_initialized() or ray.get_runtime_context().get_task_id() is None:
        return {}
    assigned = ray.get_runtime_context().get_assigned_resources()
    threads, cards = max(1, int(assigned.get("CPU", 1))), math.ceil(assigned.get("GPU", 0))
    if cards == 0:
        return {"threads": threads, "providers": without_cards()}
    return {"threads": threads, "devices": list(range(cards))}
