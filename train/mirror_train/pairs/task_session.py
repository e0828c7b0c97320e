"""Begin and end a run with task heads: load the base model, and write the folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.errors import ConfigError, ModelError
from mirror_rt.heads.task_heads import Heads
from mirror_rt.io.atomic import check_free, check_space
from mirror_train.compute.precision import Precision, resolve_device, resolve_precision
from mirror_train.compute.processes import world_size
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.pairs.recipe import TaskConfig
from mirror_train.pairs.task_layers import TaskLayer
from mirror_train.training.output_folder import describe_run, write_folder
from mirror_train.training.trainer import TrainingStats
from mirror_train.training.tune import TuneReport

__all__ = ["Session", "open_session"]


@dataclass(frozen=True, slots=True)
class Session:
    """A base model and the settings with which it is trained.

    Attributes:
        config: settings of the run.
        base: the model.
        head: its pooling and the layer after that, if there is one.
        device: where to train.
        precision: precision to train in.
    """

    config: TaskConfig
    base: Pretrained
    head: Head
    device: torch.device
    precision: Precision

    @property
    def pooling(self) -> PoolingMode:
        """The pooling from token vectors to the vector of a text."""
        return self.head.poolings[0]

    @property
    def layer(self) -> nn.Module | None:
        """The base model's layer after the pooling; None for none."""
        return next(iter(self.head.layers), None)

    @property
    def dimension(self) -> int:
        """The length D of a text's vector."""
        return self.base.dimension

    def encoder(self) -> TorchEncoder:
        """Return an encoder with the model's current weights and the `encode` of a bundle."""
        return TorchEncoder(self.base, head=self.head, device=self.device)

    def layers(self, make: Mapping[str, Callable[[int], TaskLayer]]) -> dict[str, TaskLayer]:
        """Make new task heads on the device, with initial weights that follow from the seed.

        Args:
            make: for each task, a function from the length of a text's vector to its head.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return {name: of(self.dimension).to(self.device) for name, of in make.items()}

    def heads(self, layers: Mapping[str, TaskLayer]) -> Heads:
        """Return the task heads with their current weights."""
        made = {name: layer.to_head() for name, layer in layers.items()}
        return Heads(self.dimension, self.pooling, made)

    def save(
        self,
        layers: Mapping[str, TaskLayer],
        stats: TrainingStats,
        *,
        recipe: dict[str, Any],
        data: dict[str, Any],
        training: dict[str, Any],
    ) -> TuneReport:
        """Write model and heads as the folder of the run, whole or not at all.

        Args:
            layers: the head of each task.
            stats: measurements of the training.
            recipe: what mirror.json records of the hyper-parameters.
            data: what it records of the data.
            training: what it records of the training, besides `stats`.

        Raises:
            OutputExistsError: the folder exists, and the run may not overwrite it.
            OSError: the disk is full.
        """
        own = {
            "seed": self.config.seed,
            "precision": self.precision,
            "device": self.device.type,
            "padding_percent": round(stats.padding_percent, 2),
        }
        manifest = describe_run(
            self.base,
            stats,
            pooling=self.pooling,
            recipe=recipe,
            data=data,
            training=own | training,
            level="sentence",
        )
        manifest = write_folder(
            self.base,
            manifest,
            self.config.out,
            layers=list(self.head.layers),
            also=self.heads(layers).write,
            overwrite=self.config.overwrite,
        )
        return TuneReport(self.config.out, manifest, stats)


def open_session(
    config: TaskConfig,
    *,
    pooling: PoolingMode | Literal["auto"],
    otherwise: PoolingMode,
    dropout: float,
    max_length: int,
) -> Session:
    """Check all that can be checked before the work, and load the base model.

    Args:
        config: settings of the run.
        pooling: `auto` takes the pooling that the base model declares, and the layer after it.
        otherwise: the pooling for `auto` where the base model declares none.
        dropout: rate of every dropout of the encoder.
        max_length: maximum number of tokens of a text in training.

    Raises:
        ConfigError: an option cannot be used.
        ModelError: the base model cannot be loaded, or declares a head that cannot be tuned.
        OutputExistsError: `config.out` exists.
        OSError: the disk cannot hold the result.
    """
    if world_size() != 1:
        raise ConfigError("tasks are tuned in one process: start it without torchrun")
    check_free(config.out, overwrite=config.overwrite)
    device = resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    base = load_pretrained(config.model, dropout=dropout, **config.load_options())
    if max_length > base.max_length:
        raise ConfigError(
            f"max_length {max_length} is more than the {base.max_length} positions of {base.name}"
        )
    check_space(config.out, sum(p.numel() * p.element_size() for p in base.model.parameters()))
    head = Head([pooling]) if pooling != "auto" else _declared(base, otherwise)
    return Session(config, base, head.to(device), device, precision)


def _declared(base: Pretrained, otherwise: PoolingMode) -> Head:
    head = declared_head(base.folder) or Head([otherwise])
    simple = len(head.poolings) == 1 and len(head.layers) <= 1
    if not simple or head.dimension(base.dimension) != base.dimension:
        raise ModelError(
            f"{base.name} declares {head.pooling} and {len(head.layers)} further modules, which "
            "cannot be tuned as they are: pass --pooling cls or --pooling mean"
        )
    if head.pooling == "mean-with-padding":
        raise ModelError(
            f"{base.name} was tuned with mean-with-padding, which task heads are not made for: "
            "pass --pooling mean"
        )
    return head
