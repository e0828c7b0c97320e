"""Runs whose inputs and output are bound to memory of the device, in buffers that are used again.

`InferenceSession.run` takes memory of the device for every input of every run. Outputs are bound to
the device's arena and copied once, as rows x D numbers: onnxruntime's Python API has no name for
pinned memory of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["BindingPool"]

# Buffers for more tokens than this are given back after their run: 1.5 MB are kept a set.
_KEEP_TOKENS = 1 << 16
# Sets that are kept: of as many runs at a time.
_KEEP_SETS = 4
_SMALLEST = 1 << 10


class BindingPool:
    """Bound runs of one session, several at a time where its callers are several threads.

    Args:
        session: of onnxruntime.
        memory: kind and number of the device's, as onnxruntime names it.
    """

    def __init__(self, session: ort.InferenceSession, memory: tuple[str, int]) -> None:
        self._session = session
        self._memory = memory
        self._free: list[_Buffers] = []  # append and pop are atomic

    def run(
        self, feeds: Mapping[str, npt.NDArray[np.int64]], output: str, run_options: Any
    ) -> npt.NDArray[np.float32]:
        """Run the session: as `session.run([output], feeds, run_options)[0]`."""
        try:
            buffers = self._free.pop()
        except IndexError:
            buffers = _Buffers(self._session, self._memory)
        result = buffers.run(feeds, output, run_options)
        # A set whose run has failed is let go.
        if buffers.capacity <= _KEEP_TOKENS and len(self._free) < _KEEP_SETS:
            self._free.append(buffers)
        return result


class _Buffers:
    """The buffers of one run at a time: a power of two of numbers for each input."""

    def __init__(self, session: ort.InferenceSession, memory: tuple[str, int]) -> None:
        self._session = session
        self._memory = memory
        self._binding = session.io_binding()
        self._inputs: dict[str, tuple[npt.NDArray[np.int64], ort.OrtValue]] = {}
        self.capacity = 0

    def run(
        self, feeds: Mapping[str, npt.NDArray[np.int64]], output: str, run_options: Any
    ) -> npt.NDArray[np.float32]:
        binding = self._binding
        for name, array in feeds.items():
            host, value = self._fit(name, array.size)
            host[: array.size] = array.reshape(-1)
            value.update_inplace(host)  # onnxruntime copies whole values alone
            binding.bind_input(name, *self._memory, np.int64, array.shape, value.data_ptr())
        binding.bind_output(output, *self._memory)
        try:
            binding.synchronize_inputs()
            self._session.run_with_iobinding(binding, run_options)
            return np.asarray(binding.copy_outputs_to_cpu()[0])
        finally:
            binding.clear_binding_outputs()  # its memory goes back to the arena

    def _fit(self, name: str, size: int) -> tuple[npt.NDArray[np.int64], ort.OrtValue]:
        held = self._inputs.get(name)
        if held is not None and len(held[0]) >= size:
            return held
        import onnxruntime

        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            [capacity], np.int64, *self._memory
        )
        self._inputs[name] = (np.zeros(capacity, dtype=np.int64), value)
        self.capacity = max(self.capacity, capacity)
        return self._inputs[name]
