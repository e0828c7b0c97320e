"""How a graph is run, and the same in the terms of onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mirror_rt.errors import ConfigError
from mirror_rt.inference.cpus import cpu_budget
from mirror_rt.inference.devices import Devices
from mirror_rt.inference.providers import Providers

__all__ = ["SessionConfig", "Spinning"]

Spinning = Literal["off", "run", "always"]

_SPINNING = {
    "off": {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"},
    "run": {"session.force_spinning_stop": "1"},
    "always": {},
}


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How to run a graph.

    Attributes:
        providers: `"auto"`, `"cpu"`, `"cuda"`, `"tensorrt"`, or a list of onnxruntime's names.
        allow_fallback: run on the CPU, with a warning, where the provider asked for cannot start.
        threads: of one operator; None for the processors this process may use.
        spinning: whether threads without work spin rather than sleep: `"off"`, `"run"` (while a
            run is in flight alone) or `"always"` (and a while after it, onnxruntime's own default).
            None for `"run"`, and for `"off"` under a CPU quota, which spinning would use up.
        devices: numbers of NVIDIA cards, a session on each; `"all"`; None for the first.
        cuda_graphs: run small batches as CUDA graphs.
        provider_options: of the provider that is preferred, in onnxruntime's names.

    Raises:
        ConfigError: `threads` or `spinning` has an unusable value.
    """

    providers: Providers = "auto"
    allow_fallback: bool = False
    threads: int | None = None
    spinning: Spinning | None = None
    devices: Devices = None
    cuda_graphs: bool = False
    provider_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads must be in 1 .. 1024, got {self.threads}")
        if self.spinning not in (None, *get_args(Spinning)):
            raise ConfigError(
                f"spinning must be 'off', 'run', 'always' or None, got {self.spinning!r}"
            )

    def options(self, onnxruntime: Any) -> Any:
        """The same in the terms of onnxruntime."""
        options = onnxruntime.SessionOptions()
        # Given a number, onnxruntime pins no thread to a processor, which cpusets would refuse.
        options.intra_op_num_threads = self.resolved_threads
        # Shapes vary from batch to batch: a memory pattern for each would only grow the process.
        options.enable_mem_pattern = False
        options.log_severity_level = 4  # its errors are raised, and shown once, by us
        for name, value in _SPINNING[self.resolved_spinning].items():
            options.add_session_config_entry(name, value)
        return options

    @property
    def resolved_threads(self) -> int:
        """Threads of one operator."""
        return self.threads or cpu_budget().threads

    @property
    def resolved_spinning(self) -> Spinning:
        """`spinning`, decided."""
        return self.spinning or ("off" if cpu_budget().has_quota else "run")
