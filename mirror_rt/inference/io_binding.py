"""Run sessions with inputs and outputs bound to device memory, in buffers that are reused.

Two runs are in flight at a time. Each has a stream of its own in onnxruntime, which does not hold
Python's interpreter while it runs. Inputs go to the card in one copy, on the default stream, which
does not wait for the streams of runs; vectors come back once their run has ended, so that neither
copy waits for the other run. `InferenceSession.run` would allocate device memory for every input,
and copy outputs while it still waits for the kernels.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mirror_rt.inference.devices import RUNS_IN_FLIGHT

if TYPE_CHECKING:
    import onnxruntime as ort

# Most bytes of buffers that are kept for the next runs: a batch of 131,072 tokens takes 3 or 6 MB.
_KEEP_BYTES = 1 << 25
_SMALLEST = 1 << 14
# Inputs begin at addresses that memory of their own would have.
_ALIGNMENT = 256
_OUT_OF_MEMORY = re.compile(
    "Available memory of|Failed to allocate memory|out of memory|ALLOC_FAILED", re.IGNORECASE
)

Feeds = Mapping[str, npt.NDArray[Any]]
Vectors = npt.NDArray[np.float32]


def shrinking(place: str) -> Any:
    """Return the options of a run after which the arena of `cpu:0`, `gpu:1` ... is given back."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", place)
    return options


class BindingPool:
    """Runs one session with bound buffers, from several threads at a time if need be.

    Args:
        session: session of onnxruntime.
        memory: kind and number of the device's memory, as onnxruntime names it.
    """

    def __init__(self, session: ort.InferenceSession, memory: tuple[str, int]) -> None:
        self._session = session
        self._memory = memory
        self._free: list[_Buffers] = []  # append and pop are atomic
        self._places = threading.Semaphore(RUNS_IN_FLIGHT)
        self._alone = threading.Lock()

    def run(self, feeds: Feeds, output: str) -> Vectors:
        """Run the session; return the same as `session.run([output], feeds)[0]`.

        A run that finds no memory beside another one runs again alone.
        """
        try:
            with self._places:
                return self._run(feeds, output)
        except Exception as error:
            if not _OUT_OF_MEMORY.search(str(error)):
                raise
        return self._run_alone(feeds, output)

    def _run_alone(self, feeds: Feeds, output: str) -> Vectors:
        """Run while no other run is in flight, and give the arena's memory back afterwards.

        If that fails, the memory may have been there in pieces, which were given back as well: the
        second time the arena is empty.
        """
        kind, number = self._memory
        options = shrinking(f"{'gpu' if kind == 'cuda' else kind}:{number}")
        with self._alone, contextlib.ExitStack() as places:
            for _ in range(RUNS_IN_FLIGHT):
                places.enter_context(self._places)
            try:
                return self._run(feeds, output, options)
            except Exception as error:
                if not _OUT_OF_MEMORY.search(str(error)):
                    raise
            return self._run(feeds, output, options)

    def _run(self, feeds: Feeds, output: str, run_options: Any = None) -> Vectors:
        try:
            buffers = self._free.pop()
        except IndexError:
            buffers = _Buffers(self._session, self._memory)
        result = buffers.run(feeds, output, run_options)
        # A set whose run has failed does not come here, and is freed.
        if buffers.capacity <= _KEEP_BYTES:
            self._free.append(buffers)
        return result


class _Buffers:
    """The memory of one run at a time, on host and device: `capacity` bytes of each in all.

    Onnxruntime can only copy a value as a whole, so there is one for about each size, and an eighth
    of a copy at most is not used.
    """

    def __init__(self, session: ort.InferenceSession, memory: tuple[str, int]) -> None:
        self._session = session
        self._memory = memory
        self._binding = session.io_binding()
        self._kept: dict[int, tuple[npt.NDArray[np.uint8], ort.OrtValue]] = {}

    @property
    def capacity(self) -> int:
        return sum(self._kept)

    def run(self, feeds: Feeds, output: str, run_options: Any) -> Vectors:
        binding = self._binding
        begins, size = [], 0
        for array in feeds.values():
            begins.append(size)
            size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        host, device = self._of_size(size)
        for begin, (name, array) in zip(begins, feeds.items(), strict=True):
            host[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
            address = device.data_ptr() + begin
            binding.bind_input(name, *self._memory, array.dtype, array.shape, address)
        device.update_inplace(host)
        binding.bind_output(output, *self._memory)
        try:
            binding.synchronize_inputs()
            self._session.run_with_iobinding(binding, run_options)
            return np.asarray(binding.copy_outputs_to_cpu()[0])
        finally:
            binding.clear_binding_outputs()  # gives the memory of the output back to the arena

    def _of_size(self, size: int) -> tuple[npt.NDArray[np.uint8], ort.OrtValue]:
        """Return buffers of at least `size` bytes on host and device."""
        import onnxruntime

        step = 1 << max(0, size.bit_length() - 4)
        capacity = max(_SMALLEST, -(-size // step) * step)
        if capacity not in self._kept:
            if self.capacity + capacity > _KEEP_BYTES:
                self._kept.clear()
            device = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                [capacity], np.uint8, *self._memory
            )
            self._kept[capacity] = np.zeros(capacity, dtype=np.uint8), device
        return self._kept[capacity]
