"""Run sessions with inputs and outputs bound to device memory, in buffers that are reused.

`InferenceSession.run` would allocate device memory for every input of every run. Outputs are bound
to the device's arena and copied once, as rows x D numbers, because onnxruntime's Python API cannot
name pinned host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnxruntime as ort

# Buffers for more tokens than this are freed after their run, so that a set keeps at most 1.5 MB.
_KEEP_TOKENS = 1 << 16
# The number of sets that are kept, which is the number of concurrent runs that find one.
_KEEP_SETS = 4
_SMALLEST = 1 << 10


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

    def run(
        self, feeds: Mapping[str, npt.NDArray[np.int64]], output: str, run_options: Any
    ) -> npt.NDArray[np.float32]:
        """Run the session; return the same as `session.run([output], feeds, run_options)[0]`."""
        try:
            buffers = self._free.pop()
        except IndexError:
            buffers = _Buffers(self._session, self._memory)
        result = buffers.run(feeds, output, run_options)
        # A set whose run has failed does not come here, and is freed.
        if buffers.capacity <= _KEEP_TOKENS and len(self._free) < _KEEP_SETS:
            self._free.append(buffers)
        return result


class _Buffers:
    """The buffers of one run at a time; the size of each is a power of two."""

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
            value.update_inplace(host)  # onnxruntime can only copy a value as a whole
            binding.bind_input(name, *self._memory, np.int64, array.shape, value.data_ptr())
        binding.bind_output(output, *self._memory)
        try:
            binding.synchronize_inputs()
            self._session.run_with_iobinding(binding, run_options)
            return np.asarray(binding.copy_outputs_to_cpu()[0])
        finally:
            binding.clear_binding_outputs()  # gives the memory of the output back to the arena

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
