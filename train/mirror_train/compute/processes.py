"""Train in several processes that `torchrun` starts: one for every GPU, or several on the CPU."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from mirror_rt.errors import ConfigError, ProcessGroupError
from mirror_train.compute.launch import world_size
from mirror_train.compute.precision import resolve_device

T = TypeVar("T")

_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # besides WORLD_SIZE


@dataclass(frozen=True, slots=True)
class Processes:
    """This process and the others of the run; with one process, every method is trivial.

    The methods are collective: all processes must call them in the same order.
    """

    device: torch.device  # where this process computes
    rank: int = 0  # rank of this process, 0 .. count - 1. Process 0 writes the output of the run.
    count: int = 1  # number of processes
    # Process group across which `mirror_train.infonce` takes negatives; None for one process.
    group: dist.ProcessGroup | None = None

    def own_rows(self, size: int, option: str = "--batch-size") -> slice:
        """Return this process's share of the `size` rows of a step, whose number `option` sets."""
        if size % self.count:
            raise ConfigError(
                f"the {size} rows of a step do not divide among {self.count} processes: pass "
                f"{option} {math.ceil(size / self.count) * self.count}"
            )
        share = size // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def total(self, *values: int) -> list[int]:
        """Sum each value over the processes."""
        if self.group is None:
            return list(values)
        sums = torch.tensor(values, dtype=torch.int64, device=self.device)
        dist.all_reduce(sums, group=self.group)
        return cast(list[int], sums.tolist())

    def mean(self, value: float) -> float:
        """Average a number over the processes."""
        if self.group is None:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self.group)
        return float(total) / self.count

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every parameter's gradient by its mean over the processes, in one all-reduce.

        A gradient that is not finite in one process becomes so in all, so that a GradScaler skips
        the step in all processes or in none.
        """
        if self.group is None:
            return
        given = [(p, p.grad) for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.to_dense().reshape(-1) for _, gradient in given])
        dist.all_reduce(flat, group=self.group)
        flat /= self.count
        means = torch.split(flat, [gradient.numel() for _, gradient in given])
        for (parameter, gradient), mean in zip(given, means, strict=True):
            mean = mean.view_as(parameter)
            parameter.grad = mean.to_sparse(1) if gradient.is_sparse else mean

    def in_first(self, work: Callable[[], T]) -> T:
        """Run `work` in process 0 while the others wait; return its result in all processes.

        Where it fails there, the others raise a ProcessGroupError.
        """
        if self.group is None:
            return work()
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = work()
            except Exception as error:
                self._broadcast([None, str(error) or repr(error)])
                raise
        self._broadcast(outcome)
        if outcome[1] is not None:
            raise ProcessGroupError(f"process 0 of {self.count}: {outcome[1]}")
        return cast(T, outcome[0])

    def first_then_all(self, work: Callable[[], T]) -> T:
        """Run `work` in process 0, then in the others, which find its downloads."""
        results: list[T] = []
        self.in_first(lambda: results.append(work()))
        return results[0] if results else work()

    def check_alike(self, settings: dict[str, Any]) -> None:
        """Raise ConfigError in all processes unless all have the same settings."""
        if self.group is None:
            return
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, settings, group=self.group)
        for name in sorted(settings):
            values = [other[name] for other in everyone]
            if any(value != values[0] for value in values):
                raise ConfigError(f"the processes of this run differ in {name}: {values}")

    def _broadcast(self, objects: list[Any]) -> None:
        dist.broadcast_object_list(objects, src=0, group=self.group)


@contextlib.contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started, or yield a single process where it started none.

    On GPUs, each process takes the card of its local rank, and NCCL connects them; on CPUs, gloo
    does. A process group that the caller has initialised is used and not destroyed.
    `device` is auto, cpu, cuda, or (with a single process) cuda:N.
    """
    started = dist.is_available() and dist.is_initialized()
    count = dist.get_world_size() if started else world_size()
    if count == 1:
        yield Processes(resolve_device(device))
        return
    own = _own_device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    try:
        if not started:
            _initialise(own)
        yield Processes(own, dist.get_rank(), count, dist.group.WORLD)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo/transport" in str(error)):
            raise
        reason = str(error).splitlines()[0]
        raise ProcessGroupError(f"lost the other processes of this run: {reason}") from error
    finally:
        if not started and dist.is_initialized():
            dist.destroy_process_group()


def _own_device(name: str) -> torch.device:
    device = resolve_device(name)
    if device.type == "cpu":
        return device
    if ":" in name:
        raise ConfigError(
            f"device {name!r}: with several processes each takes a GPU of its own, pass 'cuda'"
        )
    return resolve_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")


def _initialise(device: torch.device) -> None:
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        raise ConfigError(
            f"WORLD_SIZE is set to {world_size()} without {', '.join(missing)}: start several "
            "processes with torchrun"
        )
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        device_id=device if device.type == "cuda" else None,
    )
