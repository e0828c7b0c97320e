"""Make InfoNCE a differentiable function: eager, or as an operator for torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from mirror_train.loss.kernel import Variant
from mirror_train.loss.steps import Inputs, Options, backward, forward

if TYPE_CHECKING:
    from mirror_train.loss.distributed import Gathered

__all__ = ["evaluate"]


def evaluate(inputs: Inputs, options: Options, gathered: Gathered | None) -> Tensor:
    """Return the loss, differentiable in z1, z2 and the hard negatives.

    `gathered` holds the inputs of all processes, or is None for one process.
    """
    if gathered is None and torch.compiler.is_compiling():
        return cast(Tensor, _operator(*inputs, *_plain(options))[0])
    return cast(Tensor, _Infonce.apply(*inputs, options, gathered))  # type: ignore[no-untyped-call]


class _Infonce(torch.autograd.Function):
    """The eager path, without an operator's dispatch; the only path for several processes."""

    @staticmethod
    def forward(
        ctx: Any,
        z1: Tensor,
        z2: Tensor,
        hard: Tensor | None,
        ids: Tensor | None,
        options: Options,
        gathered: Gathered | None,
    ) -> Tensor:
        inputs = _contiguous(Inputs(z1, z2, hard, ids))
        result = forward(inputs, options, gathered)
        if gathered is not None:
            result = gathered.share(result)
        ctx.options, ctx.gathered = options, gathered
        ctx.save_for_backward(*inputs, result.weights, result.log_weights)
        return result.loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        *tensors, weights, log_weights = ctx.saved_tensors
        grads = backward(
            Inputs(*tensors), weights, log_weights, grad_output, ctx.options, ctx.gathered
        )
        return (*grads, *[None] * (6 - len(grads)))


def _contiguous(inputs: Inputs) -> Inputs:
    return Inputs(*(None if x is None else x.detach().contiguous() for x in inputs))  # type: ignore[arg-type]


def _plain(options: Options) -> tuple[float, str, str]:
    return options.temperature, options.variant, options.kernel


@torch.library.custom_op("mirror_train::infonce", mutates_args=())
def _operator(
    z1: Tensor,
    z2: Tensor,
    hard: Tensor | None,
    ids: Tensor | None,
    temperature: float,
    variant: str,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, weights and log weights; see `mirror_train.loss.kernel.Objective`."""
    options = Options(temperature, cast(Variant, variant), kernel)
    return tuple(forward(_contiguous(Inputs(z1, z2, hard, ids)), options, None))  # type: ignore[return-value]


@_operator.register_fake
def _(
    z1: Tensor,
    z2: Tensor,
    hard: Tensor | None,
    ids: Tensor | None,
    temperature: float,
    variant: str,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(z1.dtype, torch.float32)
    n_rows = len(z1) * (1 if variant == "one_way" else 2)
    return (
        z1.new_empty((), dtype=dtype),
        z1.new_empty(n_rows, dtype=dtype),
        z1.new_empty(n_rows, dtype=dtype),
    )


@torch.library.custom_op("mirror_train::infonce_backward", mutates_args=())
def _backward_operator(
    z1: Tensor,
    z2: Tensor,
    hard: Tensor | None,
    ids: Tensor | None,
    weights: Tensor,
    log_weights: Tensor,
    grad_output: Tensor,
    temperature: float,
    variant: str,
    kernel: str,
) -> list[Tensor]:
    options = Options(temperature, cast(Variant, variant), kernel)
    inputs = _contiguous(Inputs(z1, z2, hard, ids))
    grads = backward(inputs, weights, log_weights, grad_output, options, None)
    # An operator's results must not share memory, but the torch kernel returns views of one tensor.
    return [grad.clone() for grad in grads] if kernel == "torch" else grads


@_backward_operator.register_fake
def _(
    z1: Tensor,
    z2: Tensor,
    hard: Tensor | None,
    ids: Tensor | None,
    weights: Tensor,
    log_weights: Tensor,
    grad_output: Tensor,
    temperature: float,
    variant: str,
    kernel: str,
) -> list[Tensor]:
    blocks = [z for z in (z1, z2, hard) if z is not None]
    return [z.new_empty(z.shape) for z in blocks]


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, temperature, variant, kernel = inputs
    ctx.plain = (temperature, variant, kernel)
    ctx.save_for_backward(*tensors, *output[1:])


def _differentiate(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grads = _backward_operator(*ctx.saved_tensors, grad_loss, *ctx.plain)
    return (*grads, *[None] * (7 - len(grads)))


_operator.register_autograd(_differentiate, setup_context=_set_up)
