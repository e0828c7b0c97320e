"""The steps of Mirror-BERT: two views of each string, and the loss that contrasts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from mirror_rt.errors import ConfigError, Setting
from mirror_rt.tokens.tokenization import TokenizedTexts
from mirror_train.compute.precision import Precision
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches, StepBatch
from mirror_train.data.views import mask_token_spans
from mirror_train.loss import cuda_device, first_view, infonce, multi_similarity
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.guide import Guide
from mirror_train.training.loop import Trainer, encoder_forward
from mirror_train.training.optimizer import adamw
from mirror_train.training.steps import Part, Steps
from mirror_train.training.teacher import Teacher

ViewsLoss = Callable[..., Tensor]
"""From the views z1, z2 (and hard negatives), [n, D] each, to a scalar."""


def mirror_trainer(
    base: Pretrained,
    batches: Batches,
    recipe: Recipe,
    *,
    precision: Precision,
    processes: Processes,
    layers: Iterable[nn.Module] = (),
    mlp: nn.Module | None = None,
    loss: ViewsLoss | None = None,
    teacher: Teacher | Guide | None = None,
) -> Trainer:
    """Return the trainer of a model by Mirror-BERT.

    The layers after its pooling are not trained, and an `mlp` after them is. A `loss` takes the
    place of the recipe's, and a `teacher` is followed (see `soft_targets`).

    Where a process's share of a batch is larger than the recipe's batch size, gradients are cached.
    """
    cuda_device.prepare(processes.device)  # while the device's memory is free
    trained = {} if mlp is None else {"mlp": mlp}
    forward = encoder_forward(
        base,
        Head([recipe.fixed_pooling], [*layers, *trained.values()]),
        processes.device,
        precision,
        pad_to=pad_length(recipe),
        same_dropout=recipe.same_dropout,
    )
    freeze_layers(base.model, recipe.frozen_layers)
    modules = nn.ModuleDict({"encoder": base.model} | trained)
    rows = batches.views * recipe.batch_size
    return Trainer(
        steps=mirror_steps(base, batches, recipe, processes, loss, teacher),
        forward=forward,
        modules=modules,
        optimizer=adamw((one for one in modules.parameters() if one.requires_grad), recipe),
        seed=batches.seed,
        processes=processes,
        precision=precision,
        warm_up=recipe.warm_up,
        decay=recipe.decay,
        max_rows=rows if batches.share > recipe.batch_size else None,
        advice="a lower --learning-rate, a higher --temperature, or --precision fp32",
    )


def pad_length(recipe: Recipe) -> int | None:
    """Return the length that `mean-with-padding` pads every text to; None for other poolings."""
    return recipe.max_length if recipe.pooling == "mean-with-padding" else None


def mirror_steps(
    base: Pretrained,
    batches: Batches,
    recipe: Recipe,
    processes: Processes,
    own: ViewsLoss | None = None,
    teacher: Teacher | Guide | None = None,
) -> Steps:
    """Return the steps of a run: each has one part, the views of its batch (EMNLP 2021, section 2).

    An `own` loss takes the place of the recipe's, and so does that of a `teacher`. It is added up
    over the whole vectors and the first dimensions that the recipe's `matryoshka` names.
    """
    tokenize = ViewTokenizer(base, recipe)

    def loss(batch: StepBatch, z: Tensor) -> Tensor:
        sizes = (*(recipe.matryoshka or ()), z.shape[1])
        return torch.stack([loss_of(batch, z[:, :size]) for size in sizes]).sum()

    def loss_of(batch: StepBatch, z: Tensor) -> Tensor:
        if own is not None:
            given = own(*z.chunk(batch.views))
            if not isinstance(given, Tensor) or given.numel() != 1:
                what = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
                raise ConfigError(
                    f"a loss of your own must give a tensor of one number, got {what}"
                )
            return given
        if teacher is not None:
            return teacher.loss(z, batch, recipe)
        return contrast(z, batch, recipe, process_group=processes.group)

    def parts(step: int) -> list[Part]:
        batch = batches[step]
        if teacher is not None:
            batch = teacher.views_of(batch, recipe)
        tokens, cut = tokenize(batch)
        return [Part(tokens, partial(loss, batch), sum(cut))]

    return Steps(len(batches), parts)


class ViewTokenizer:
    """A tokenizer of a step's strings that masks a span of each positive if the recipe says so."""

    def __init__(self, pretrained: Pretrained, recipe: Recipe) -> None:
        self._tokenize = pretrained.text_tokenizer(recipe.max_length)
        self._recipe = recipe
        tokenizer = pretrained.hf_tokenizer
        self._mask_id = tokenizer.mask_token_id
        frame = ("cls", "sep", "bos", "eos", "pad")
        found = [getattr(tokenizer, f"{name}_token_id") for name in frame]
        self._special_ids = {id for id in found if id is not None}

    def __call__(self, batch: StepBatch) -> TokenizedTexts:
        """Return the tokens of the strings of a batch, and which of them were cut."""
        tokens, cut = self._tokenize(batch.texts)
        if batch.span_draws is None:
            return TokenizedTexts(tokens, cut)
        masked = mask_token_spans(
            tokens,
            batch.span_draws,
            probability=self._recipe.span_probability,
            most=self._recipe.span_length,
            mask_id=self._mask_id,
            special_ids=self._special_ids,
            scattered=self._recipe.span_mask == "random-tokens",
            first=len(tokens) // batch.views,
        )
        return TokenizedTexts(masked, cut)


def contrast(
    z: Tensor,
    batch: StepBatch,
    recipe: Recipe,
    *,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """Return the loss of this process's share of a step, a scalar; see `infonce`.

    `z` [V * n, D] are the embeddings of `batch.texts`: strings, positives and, where V is 3, hard
    negatives. They are also contrasted with the rows of the other processes of `process_group`.
    """
    z1, z2, *hard = z.chunk(batch.views)
    ids = None if batch.group_ids is None else torch.from_numpy(batch.group_ids).to(z.device)
    if recipe.loss == "multi_similarity":
        return multi_similarity(
            z1,
            z2,
            alpha=recipe.ms_alpha,
            beta=recipe.ms_beta,
            base=recipe.ms_base,
            margin=recipe.triplet_margin,
            group_ids=ids,
            process_group=process_group,
        )
    if recipe.loss == "first_view":
        if process_group is not None or hard:
            raise ConfigError(
                "the loss first_view is for one process and no hard negatives: choose ntxent"
            )
        return first_view(z1, z2, temperature=recipe.temperature, group_ids=ids)
    return infonce(
        z1,
        z2,
        temperature=recipe.temperature,
        variant=recipe.loss,
        group_ids=ids,
        hard_negatives=hard[0] if hard else None,
        process_group=process_group,
    )


def freeze_layers(model: nn.Module, count: int) -> None:
    """Train only the layers after the first `count`, and not the embeddings; 0 trains all."""
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
