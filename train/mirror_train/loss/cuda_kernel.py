"""Compute InfoNCE by the CUDA extension, in memory linear in the batch, without synchronising.

The kernels and their derivation are in csrc/infonce/gpu/loss.cu. A pass is one call, with one
workspace: at a few hundred rows the host's work decides, where each call, tensor and change of
device takes a microsecond or two, as long as a kernel. This module checks the tensors, since the
extension takes bare addresses, allocates memory by torch's allocator, and queues everything on
torch's current stream, so that calls can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirror_train.loss.cpu_kernel import DTYPES, address
from mirror_train.loss.cuda_device import call_on_device, extension
from mirror_train.loss.following import Following, Gradients
from mirror_train.loss.kernel import Gathered, Inputs, Objective, Options

_MOST_BATCHES = 64  # kept; only a new one takes time
_NOTHING = (0, 0, 0)


class _Batch(NamedTuple):
    """The extension's view of a batch, its number of losses, and the bytes that its passes need.

    A pass takes the addresses of tensors, 0 for none, of a workspace and of a stream
    (csrc/bindings/cuda.cpp); a CUDA call that fails raises a RuntimeError that names it.
    """

    native: Any
    losses: int
    forward_bytes: int
    backward_bytes: int


class CudaKernel:
    """The `mirror_train.loss.kernel.Kernel` for CUDA, in fp32, fp16 and bf16.

    Args:
        module: a module with the extension's interface, for which the tensors' device is not
            checked; None for the extension.
        panel_tiles: the most tiles of weights computed at once; 0 for at most 254 MB of them, as
            many as share out their sums evenly.
        logsumexp_tiles: the most tiles computed at once each way in a logsumexp; 0 for 128.
    """

    def __init__(
        self, module: Any = None, *, panel_tiles: int = 0, logsumexp_tiles: int = 0
    ) -> None:
        self._device_type = "cuda" if module is None else None
        self._cuda: Any = extension() if module is None else module
        self._waves = (panel_tiles, logsumexp_tiles)
        self._batches: dict[Any, _Batch] = {}

    def forward(self, inputs: Inputs, options: Options) -> Objective:
        """Return the tensors that `Kernel.forward` names."""
        z1, z2, hard, _ = inputs
        batch, gathered = self._batch(inputs, options), options.gathered
        row_ranks, column_ranks = _ranks(inputs, options)
        device = z1.device
        weights = torch.empty(batch.losses, dtype=torch.float32, device=device)
        log_weights = torch.empty_like(weights)
        loss = torch.empty((), dtype=torch.float32, device=device)
        workspace = torch.empty(batch.forward_bytes, dtype=torch.uint8, device=device)
        call_on_device(
            self._cuda,
            z1.get_device(),
            batch.native.forward,
            z1.data_ptr(),
            z2.data_ptr(),
            address(hard),
            *_addresses(gathered),
            address(row_ranks),
            address(column_ranks),
            options.scale,
            options.variant == "decoupled",
            workspace.data_ptr(),
            loss.data_ptr(),
            weights.data_ptr(),
            log_weights.data_ptr(),
        )
        return Objective(loss, weights, log_weights)

    def backward(
        self, inputs: Inputs, weights: Tensor, log_weights: Tensor, grad: Tensor, options: Options
    ) -> list[Tensor]:
        """Return the gradients that `Kernel.backward` names, of inputs and weights of `forward`."""
        z1, z2, hard, _ = inputs
        batch, gathered = self._batch(inputs, options), options.gathered
        row_ranks, column_ranks = _ranks(inputs, options)
        grads = [torch.empty_like(z1), torch.empty_like(z2)]
        if hard is not None:
            grads.append(torch.empty_like(hard))
        workspace = torch.empty(batch.backward_bytes, dtype=torch.uint8, device=z1.device)
        call_on_device(
            self._cuda,
            z1.get_device(),
            batch.native.backward,
            z1.data_ptr(),
            z2.data_ptr(),
            address(hard),
            *_addresses(gathered),
            address(row_ranks),
            address(column_ranks),
            options.scale,
            weights.data_ptr(),
            log_weights.data_ptr(),
            0 if gathered is None else gathered.log_weights.data_ptr(),
            grad.data_ptr(),
            workspace.data_ptr(),
            grads[0].data_ptr(),
            grads[1].data_ptr(),
            0 if hard is None else grads[2].data_ptr(),
        )
        return grads

    def follow(
        self,
        views: Sequence[Tensor],
        teacher: Tensor,
        ids: Tensor | None,
        *,
        temperature: float,
        teacher_temperature: float,
        weight: float,
    ) -> tuple[Tensor, Gradients]:
        """Return the loss of `mirror_train.loss.soft_targets`, and what gives its gradients."""
        z1, z2 = views[0], views[1] if len(views) > 1 else None
        self._check(Inputs(z1, views[-1], None, ids), z1)
        batch = self._cuda.TaughtBatch(
            len(z1), z2 is not None, z1.shape[1], teacher.shape[1],
            getattr(self._cuda.Dtype, DTYPES[z1.dtype]), *self._waves,
        )  # fmt: skip
        ranks = None
        if ids is not None:
            ranks = torch.searchsorted(ids.sort().values, ids, out_int32=True).repeat(len(views))
        inputs = self._cuda.TaughtInputs(
            z1.data_ptr(), address(z2), teacher.data_ptr(), address(ranks),
            1 / temperature, 1 / teacher_temperature,
        )  # fmt: skip
        call = partial(call_on_device, self._cuda, z1.get_device())
        empty = partial(torch.empty, dtype=torch.float32, device=z1.device)
        bytes_of = partial(torch.empty, dtype=torch.uint8, device=z1.device)
        workspace, n, teacher_n = bytes_of(batch.bytes), empty(batch.rows), empty(len(z1))
        plain = Objective(empty(()), empty(batch.rows), empty(batch.rows))
        call(
            batch.begin, inputs, workspace.data_ptr(), n.data_ptr(), teacher_n.data_ptr(),
            *(part.data_ptr() for part in plain),
        )  # fmt: skip
        if z2 is None:  # without a partner there is nothing to contrast
            plain.loss.zero_()
            plain.weights.zero_()
        following = Following.of(n, teacher_n, plain, weight)
        sums = empty(batch.sums)
        totals = torch.zeros(batch.totals, dtype=torch.float64, device=z1.device)
        call(
            batch.contract, inputs, following.log_weights.data_ptr(),
            following.teacher_log_weights.data_ptr(), workspace.data_ptr(), sums.data_ptr(),
            totals.data_ptr(),
        )  # fmt: skip

        def gradients(grad: Tensor) -> list[Tensor]:
            grads = [torch.empty_like(view) for view in views]
            workspace = bytes_of(batch.finish_bytes)
            call(
                batch.finish, inputs, sums.data_ptr(), following.g.data_ptr(),
                1 / temperature / batch.rows, grad.data_ptr(), workspace.data_ptr(),
                grads[0].data_ptr(), grads[1].data_ptr() if z2 is not None else 0,
            )  # fmt: skip
            return grads

        return following.loss(totals.sum()), gradients

    def _batch(self, inputs: Inputs, options: Options) -> _Batch:
        """Return the batch of inputs like these, which are checked only when it is made."""
        gathered = options.gathered
        tensors = inputs if gathered is None else (*inputs, *gathered.inputs)
        key = (
            options.variant,
            *[
                None if z is None else (z.shape, z.dtype, z.device, z.is_contiguous())
                for z in tensors
            ],
        )
        batch = self._batches.get(key)
        if batch is None:
            for given in [inputs] if gathered is None else [inputs, gathered.inputs]:
                self._check(given, inputs.z1)
            if len(self._batches) >= _MOST_BATCHES:
                self._batches.clear()
            batch = self._batches[key] = self._make_batch(inputs, options)
        return batch

    def _check(self, inputs: Inputs, like: Tensor) -> None:
        """Raise ValueError unless the extension can read the inputs beside a tensor."""
        z1, z2, hard, ids = inputs
        if like.dtype not in DTYPES:
            raise ValueError(f"embeddings must be float32, float16 or bfloat16, got {like.dtype}")
        if self._device_type is not None and like.device.type != self._device_type:
            raise ValueError(f"embeddings must be on a CUDA device, got {like.device}")
        for z in (z1, z2) if hard is None else (z1, z2, hard):
            alike = z.dtype == like.dtype and z.device == like.device
            if z.ndim != 2 or z.shape[1] != like.shape[-1] or not alike:
                raise ValueError(
                    f"blocks must share D, dtype and device, got {_described(like)} and "
                    f"{_described(z)}"
                )
            if not z.is_contiguous():
                raise ValueError(f"blocks must be contiguous, got strides {z.stride()}")
        n = len(z1)
        if len(z2) != n:
            raise ValueError(f"z1 and z2 must have equal numbers of rows, got {n} and {len(z2)}")
        if ids is None:
            return
        if ids.shape != (n,) or ids.dtype != torch.int64 or ids.device != like.device:
            raise ValueError(
                f"ids must be int64 [{n}] on {like.device}, got {ids.dtype} {list(ids.shape)} on "
                f"{ids.device}"
            )

    def _make_batch(self, inputs: Inputs, options: Options) -> _Batch:
        gathered = options.gathered
        dtype = getattr(self._cuda.Dtype, DTYPES[inputs.z1.dtype])
        own, every = _sizes(inputs), (0, 0) if gathered is None else _sizes(gathered.inputs)
        dim, one_way = inputs.z1.shape[1], options.variant == "one_way"
        native = self._cuda.Batch(*own, *every, dim, dtype, one_way, *self._waves)
        return _Batch(native, native.losses, native.forward_bytes, native.backward_bytes)


def _sizes(inputs: Inputs) -> tuple[int, int]:
    return len(inputs.z1), 0 if inputs.hard is None else len(inputs.hard)


def _addresses(gathered: Gathered | None) -> tuple[int, int, int]:
    if gathered is None:
        return _NOTHING
    return gathered.z1.data_ptr(), gathered.z2.data_ptr(), address(gathered.hard)


def _ranks(inputs: Inputs, options: Options) -> tuple[Tensor | None, Tensor | None]:
    """Return int32 numbers of the ids of all rows and columns that belong to strings.

    They are equal exactly where ids are, and made without waiting for the device. Keep them until
    they have been passed.
    """
    own, every = inputs.ids, inputs.ids
    if options.gathered is not None:
        own, every = options.gathered.own_ids, options.gathered.ids
    if own is None or every is None:
        return None, None
    order, views = every.sort().values, 1 if options.variant == "one_way" else 2
    rows = columns = torch.searchsorted(order, every, out_int32=True).repeat(views)
    if own is not every:
        rows = torch.searchsorted(order, own, out_int32=True).repeat(views)
    return rows, columns


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
