"""The hyper-parameters of cross-encoders: trained on labelled pairs, or by Trans-Encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mirror_rt.bundle.manifest import PoolingMode
from mirror_train.recipes.recipe import Hyperparameters, NotNegative, Positive, Rate, least


@dataclass(frozen=True, slots=True)
class _PairRecipe(Hyperparameters):
    """The hyper-parameters of a cross-encoder's steps (defaults: Trans-Encoder's code).

    Attributes:
        epochs: passes over the pairs.
        steps: number of optimiser steps, in the place of epochs.
        batch_size: number of pairs of a batch.
        learning_rate: the highest rate of AdamW.
        weight_decay: weight decay of AdamW.
        warm_up: the share of the steps over which the learning rate rises.
        decay: whether it falls to 0 over the others, or stays.
        dropout: rate of every dropout of the model.
        max_length: the most tokens of a pair, or of a text, in training.
    """

    epochs: Positive = 1
    steps: Annotated[int | None, least(1)] = None
    batch_size: Annotated[int, least(1)] = 32
    learning_rate: Positive = 2e-5
    weight_decay: NotNegative = 0.01
    warm_up: Rate = 0.1
    decay: bool = True
    dropout: Rate = 0.1
    max_length: Annotated[int, least(5)] = 128


@dataclass(frozen=True, slots=True)
class CrossEncoderRecipe(_PairRecipe):
    """The hyper-parameters of a cross-encoder that learns from labelled pairs; see `_PairRecipe`.

    Attributes:
        both_orders: train on each pair in both orders, for texts of one kind.
        lowest: the score that becomes 0 (default: the whole number below all scores).
        highest: the score that becomes 1 (default: the whole number above all scores).
    """

    both_orders: bool = False
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True, slots=True)
class TransEncoderRecipe(_PairRecipe):
    """The hyper-parameters of Trans-Encoder (Liu et al., ICLR 2022; defaults: the authors' code).

    The cross-encoder learns from each pair in both orders.

    Attributes:
        cycles: how often the cross-encoder learns from the encoder, and the encoder from it.
        encoder_epochs: passes of the encoder over the pairs.
        encoder_steps: number of its optimiser steps, in the place of epochs.
        encoder_batch_size: number of pairs of its batches.
        encoder_learning_rate: the highest rate of its AdamW, which then falls to 0.
        pooling: `auto` takes what the base model declares, else the mean.
    """

    cycles: Annotated[int, least(1)] = 3
    encoder_epochs: Positive = 10
    encoder_steps: Annotated[int | None, least(1)] = None
    encoder_batch_size: Annotated[int, least(1)] = 128
    encoder_learning_rate: Positive = 5e-5
    pooling: PoolingMode | Literal["auto"] = "auto"

    @property
    def cross(self) -> CrossEncoderRecipe:
        """The recipe of the cross-encoder of a cycle."""
        shared = {name: getattr(self, name) for name in _PairRecipe.__dataclass_fields__}
        return CrossEncoderRecipe(both_orders=True, lowest=0, highest=1, **shared)

    @property
    def encoder(self) -> CrossEncoderRecipe:
        """The recipe of the encoder of a cycle, whose rate does not rise first."""
        return self.cross.replace(
            both_orders=False,
            epochs=self.encoder_epochs,
            steps=self.encoder_steps,
            batch_size=self.encoder_batch_size,
            learning_rate=self.encoder_learning_rate,
            warm_up=0.0,
            decay=True,
        )
