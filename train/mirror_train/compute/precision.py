"""Choose the device and the floating-point precision of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from mirror_rt.errors import ConfigError

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "fp32", "bf16", "fp16"]


def resolve_device(name: str) -> torch.device:
    """Return the device named `auto` (CUDA if available, else CPU), `cpu`, `cuda` or `cuda:N`."""
    import torch  # imported here, because configurations can be read without torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and name.partition(":")[0] != "cuda":
        raise ConfigError(field="device", expected="auto, cpu, cuda or cuda:N", value=name)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            field="device", expected="auto, cpu, cuda or cuda:N", value=name
        ) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count() > 0:
        raise ConfigError(f"device {name!r}: there are {torch.cuda.device_count()} CUDA devices")
    if device.type == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        raise ConfigError(
            f"device {name!r} was asked for, but torch {torch.__version__} ({built}) "
            "finds no CUDA device"
        )
    return device


def resolve_precision(name: str, device: torch.device) -> Precision:
    """Resolve `auto` to the precision that the device computes fastest; return others unchanged.

    16-bit matrix products need hardware support: on a CPU without AVX512-BF16 or AMX, bf16 is far
    slower than fp32 (a 2048 x 384 x 1536 product on two AMD EPYC cores with only AVX2, torch 2.13:
    1.3 against 147 GFLOP/s).
    """
    import torch

    if name not in get_args(Precision):
        raise ConfigError(
            field="precision", expected=f"one of {', '.join(get_args(Precision))}", value=name
        )
    if name != "auto":
        return name  # type: ignore[return-value]
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    # torch 2.8 does not say what the processor can do: fp32 is right everywhere, only slower.
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bf16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "fp32"
