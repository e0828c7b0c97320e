"""Begin and end a run with task heads: load the base model, and write the folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mirror_rt.errors import ModelError
from mirror_rt.heads.task_heads import Heads
from mirror_rt.io.atomic import check_free
from mirror_train.compute.launch import check_one_process
from mirror_train.compute.precision import Precision, resolve_device, resolve_precision
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.pairs.recipe import BurtConfig, MultitaskConfig
from mirror_train.pairs.task_layers import TaskLayer
from mirror_train.training.output_folder import TuneReport, check_disk, write_folder
from mirror_train.training.trainer import TrainingStats


@dataclass(frozen=True, slots=True)
class Session:
    """A base model, its head (the pooling and the layers after it), and how it is trained."""

    config: BurtConfig | MultitaskConfig
    base: Pretrained
    head: Head
    device: torch.device
    precision: Precision

    def encoder(self) -> TorchEncoder:
        """Return an encoder with the model's current weights and the `encode` of a bundle."""
        return TorchEncoder(self.base, head=self.head, device=self.device)

    def layers(self, make: Mapping[str, Callable[[int], TaskLayer]]) -> dict[str, TaskLayer]:
        """Make new task heads on the device, with initial weights that follow from the seed.

        `make` has for each task a function from the length of a text's vector to its head.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return {name: of(self.base.dimension).to(self.device) for name, of in make.items()}

    def parameters(self, layers: Mapping[str, TaskLayer]) -> list[nn.Parameter]:
        """Return the parameters of the model and of the task heads."""
        return list(nn.ModuleList([self.base.model, *layers.values()]).parameters())

    def heads(self, layers: Mapping[str, TaskLayer]) -> Heads:
        """Return the task heads with their current weights."""
        made = {name: layer.to_head() for name, layer in layers.items()}
        return Heads(self.base.dimension, self.head.poolings[0], made)

    def save(
        self,
        layers: Mapping[str, TaskLayer],
        stats: TrainingStats,
        *,
        system: str,
        data: dict[str, Any],
        training: dict[str, Any],
    ) -> TuneReport:
        """Write model and heads as the folder of the run, whole or not at all.

        `data` and `training` are what mirror.json records of these, besides `stats`.

        Raises:
            OutputExistsError: the folder exists, and the run may not overwrite it.
            OSError: the disk is full.
        """
        own = {
            "precision": self.precision,
            "device": self.device.type,
            "padding_percent": round(stats.padding_percent, 2),
        }
        return write_folder(
            self.base,
            self.head,
            stats,
            self.config,
            recipe={"system": system} | dataclasses.asdict(self.config.recipe),
            data=data,
            training=own | training,
            level="sentence",
            also=self.heads(layers).write,
        )


def open_session(config: BurtConfig | MultitaskConfig) -> Session:
    """Check all that can be checked before the work, and load the base model.

    Where the recipe's pooling is `auto`, the base model's own is taken, with the layer after it;
    the mean where it declares none.

    Raises:
        ConfigError: an option cannot be used.
        ModelError: the base model cannot be loaded, or declares a head that cannot be tuned.
        OutputExistsError: `config.out` exists.
        OSError: the disk cannot hold the result.
    """
    check_one_process("training on tasks")
    check_free(config.out, overwrite=config.overwrite)
    recipe, device = config.recipe, resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    base = load_pretrained(config.model, dropout=recipe.dropout, **config.load_options())
    base.check_length(recipe.max_length)
    check_disk(base, config.out)
    head = _declared(base) if recipe.pooling == "auto" else Head([recipe.pooling])
    return Session(config, base, head.to(device), device, precision)


def _declared(base: Pretrained) -> Head:
    head = declared_head(base.folder) or Head(["mean"])
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
