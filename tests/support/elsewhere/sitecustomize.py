"""Let every Python process refuse opens of ours that name no encoding, and behave as elsewhere.

Python imports this module at its start where this folder is in PYTHONPATH. For the rows of
tests/elsewhere.sh these are otherwise:

- ELSEWHERE_ISA: the most capable instruction set that the native engine and the vector functions
  take (that of the loss is chosen by MIRROR_RT_INSTRUCTION_SET)
- ELSEWHERE_WITHOUT: a package that cannot be imported
- ELSEWHERE_BF16: 1 or 0, whether the processor multiplies matrices of bfloat16
- ELSEWHERE_SLOWER: how many times as long a bundle runs
- ELSEWHERE_FASTER: how many times as long a test sleeps, so that a server does as much more in it
"""

from __future__ import annotations

import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

_TESTS = f"{os.sep}tests{os.sep}"


def hold_instruction_set(core: ModuleType) -> None:
    """Leave `_core` the instruction sets up to the chosen one, which it then takes by itself."""
    best = os.environ["ELSEWHERE_ISA"]
    engine, vector = core.engine_instruction_sets(), core.vector_instruction_sets()
    engine = engine[: engine.index(best) + 1]
    vector = [name for name in vector if name in engine]

    class NativeEncoder(core.NativeEncoder):
        def __init__(self, *arguments: Any, instruction_set: str = "", **options: Any) -> None:
            super().__init__(*arguments, instruction_set=instruction_set or best, **options)

    core.NativeEncoder = NativeEncoder
    core.engine_instruction_sets = lambda: list(engine)
    core.vector_instruction_sets = lambda: list(vector)
    for name in ("quantize_rows", "search_codes", "search_bits", "half_products",
                 "keep_best", "max_similarities", "residual_similarities"):  # fmt: skip
        setattr(core, name, functools.partial(getattr(core, name), instruction_set=vector[-1]))


def set_bfloat16(cpu: ModuleType) -> None:
    """Let `torch.cpu` say that the processor has, or lacks, instructions for bfloat16."""
    found = getattr(cpu, "get_capabilities", dict)
    has = os.environ["ELSEWHERE_BF16"] == "1"
    cpu.get_capabilities = lambda: {**found(), "avx512_bf16": has, "amx_bf16": has}


def slow_down(bundles: ModuleType) -> None:
    """Let a run of a bundle take ELSEWHERE_SLOWER times as long."""
    run, times = bundles.BundleModel.run_batch, float(os.environ["ELSEWHERE_SLOWER"])

    def run_batch(self: Any, batch: Any, *, normalize: bool) -> Any:
        began = time.perf_counter()
        vectors = run(self, batch, normalize=normalize)
        _sleep((times - 1) * (time.perf_counter() - began))
        return vectors

    bundles.BundleModel.run_batch = run_batch


def lengthen_sleep(module: ModuleType) -> None:
    """Let `time.sleep` last ELSEWHERE_FASTER times as long where a test calls it."""
    times = float(os.environ["ELSEWHERE_FASTER"])

    def sleep(seconds: float) -> None:
        called = sys._getframe(1).f_code.co_filename
        _sleep(seconds * (times if _TESTS in called else 1))

    module.sleep = sleep


if sys.flags.warn_default_encoding:  # others may do so, and say nothing
    warnings.filterwarnings("ignore", category=EncodingWarning)
    warnings.filterwarnings("error", "", EncodingWarning, r"mirror_(rt|train|export)\b")
if "ELSEWHERE_WITHOUT" in os.environ:
    sys.modules[os.environ["ELSEWHERE_WITHOUT"]] = None  # type: ignore[assignment]
_sleep = time.sleep
# What each variable changes when it is imported.
CHANGES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "ELSEWHERE_ISA": ("mirror_rt._core", hold_instruction_set),
    "ELSEWHERE_BF16": ("torch.cpu", set_bfloat16),
    "ELSEWHERE_SLOWER": ("mirror_rt.inference.bundle_model", slow_down),
}


class ChangedLoader(Loader):
    """Load a module as another loader does; then change it."""

    def __init__(self, loader: Any, change: Callable[[ModuleType], None]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: Any) -> Any:
        """Return what the other loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code; then change what it holds."""
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Finder(MetaPathFinder):
    """Find the modules that are to be changed, by the other finders."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the spec that another finder has, with a loader that changes the module."""
        if name not in self._changes:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None:
            spec.loader = ChangedLoader(spec.loader, self._changes[name])
        return spec


sys.meta_path.insert(
    0, Finder({module: change for variable, (module, change) in CHANGES.items()
               if variable in os.environ}),
)  # fmt: skip
if "ELSEWHERE_FASTER" in os.environ:
    lengthen_sleep(time)
