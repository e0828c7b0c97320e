"""Make InfoNCE a differentiable function: eager, or as an operator for torch.compile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from mirror_train.loss.dispatch import kernel_named
from mirror_train.loss.distributed import share
from mirror_train.loss.kernel import Inputs, Options


def evaluate(inputs: Inputs, options: Options) -> Tensor:
    """Return the loss, differentiable in z1, z2 and the hard negatives."""
    if options.gathered is None and torch.compiler.is_compiling():
        plain = (options.temperature, options.variant, options.kernel)
        return cast(Tensor, _operator(*inputs, *plain)[0])
    return cast(Tensor, _Infonce.apply(*inputs, options))  # type: ignore[no-untyped-call]


class _Infonce(torch.autograd.Function):
    """The eager path, without an operator's dispatch; the only path for several processes."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, ctx.options = arguments
        inputs, options = _contiguous(tensors), ctx.options
        result = kernel_named(options.kernel).forward(inputs, options)
        if options.gathered is not None:
            result = share(options.gathered, result)
        ctx.save_for_backward(*inputs, result.weights, result.log_weights)
        return result.loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        *tensors, weights, log_weights = ctx.saved_tensors
        given = (Inputs(*tensors), weights, log_weights, grad_output, ctx.options)
        with torch.no_grad():
            grads = kernel_named(ctx.options.kernel).backward(*given)
        return once(tensors[:3], (*grads, *[None] * (5 - len(grads))))


def once(
    inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """Pass on the gradients of inputs, and refuse to differentiate them once more."""
    if not torch.is_grad_enabled():
        return grads
    found = _Once.apply(len(inputs), *inputs, *grads)  # type: ignore[no-untyped-call]
    return cast(Sequence[Tensor | None], found)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        return tensors[inputs:]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "this loss has no second derivative, which create_graph and gradient penalties ask "
            "for: take the gradient without create_graph, or write the loss in plain PyTorch"
        )


def _contiguous(tensors: Iterable[Tensor | None]) -> Inputs:
    return Inputs(*[None if x is None else x.contiguous() for x in tensors])  # type: ignore[arg-type]


# The arguments of the operators: the fields of `Inputs`, and those of `Options` as plain values.
_TENSORS = "Tensor z1, Tensor z2, Tensor? hard, Tensor? ids"
_OPTIONS = "float temperature, str variant, str kernel"


@torch.library.custom_op(
    "mirror_train::infonce",
    mutates_args=(),
    schema=f"({_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
)
def _operator(*arguments: Any) -> tuple[Tensor, ...]:
    """Return loss, weights and log weights; see `mirror_train.loss.kernel.Objective`."""
    inputs, options = _contiguous(arguments[:4]), Options(*arguments[4:])
    return tuple(kernel_named(options.kernel).forward(inputs, options))


@_operator.register_fake
def _(z1: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    dtype = torch.promote_types(z1.dtype, torch.float32)
    n_rows = len(z1) * (1 if "one_way" in arguments else 2)
    return tuple(z1.new_empty(shape, dtype=dtype) for shape in ((), (n_rows,), (n_rows,)))


@torch.library.custom_op(
    "mirror_train::infonce_backward",
    mutates_args=(),
    schema=f"({_TENSORS}, Tensor weights, Tensor log_weights, Tensor grad_output, {_OPTIONS})"
    " -> Tensor[]",
)
def _backward_operator(*arguments: Any) -> list[Tensor]:
    inputs, options = _contiguous(arguments[:4]), Options(*arguments[7:])
    weights, log_weights, grad_output = arguments[4:7]
    kernel = kernel_named(options.kernel)
    grads = kernel.backward(inputs, weights, log_weights, grad_output, options)
    # An operator's results must not share memory, but the torch kernel returns views of one tensor.
    return [grad.clone() for grad in grads] if options.kernel == "torch" else grads


@_backward_operator.register_fake
def _(z1: Tensor, *arguments: Any) -> list[Tensor]:
    return [z.new_empty(z.shape) for z in (z1, *arguments[:2]) if z is not None]


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.plain = inputs[4:]
    ctx.save_for_backward(*inputs[:4], *output[1:])


def _differentiate(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grads = _backward_operator(*ctx.saved_tensors, grad_loss, *ctx.plain)
    return (*grads, *[None] * (7 - len(grads)))


_operator.register_autograd(_differentiate, setup_context=_set_up)
