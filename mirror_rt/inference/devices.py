"""The NVIDIA cards that sessions run on, and the options that onnxruntime gets for them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mirror_rt.bundle.hub import cache_folder
from mirror_rt.errors import ConfigError
from mirror_rt.inference.providers import CUDA, TENSORRT
from mirror_rt.inference.shared_libraries import nvidia_cards

Devices = Sequence[int] | Literal["all"] | None

# Providers whose sessions run on a card. Tests add the CPU provider, to test without a card how
# buffers are bound and how work is shared among devices.
_ON_CARDS = frozenset({CUDA, TENSORRT})


def on_card(provider: str) -> bool:
    """Return whether sessions of a provider run on a card."""
    return provider in _ON_CARDS


def choose_devices(devices: Devices, provider: str) -> list[int | None]:
    """Return the numbers of the cards to open a session on; [None] for the CPU.

    Args:
        devices: numbers of the cards, `"all"`, or None for the first.
        provider: onnxruntime's name of the execution provider.

    Raises:
        ConfigError: there is no such card, or the provider does not run on cards.
    """
    if not on_card(provider):
        if devices is not None:
            raise ConfigError(
                f"devices={devices!r}: devices are NVIDIA cards, and this session is on the CPU; "
                "leave it out, or ask for providers='cuda'"
            )
        return [None]
    if devices is None:
        return [0]
    count = nvidia_cards()
    if isinstance(devices, str):
        if devices != "all":
            raise ConfigError(f"devices must be numbers of cards or 'all', got {devices!r}")
        return list(range(count))
    chosen = [_number(device) for device in devices]
    unknown = [number for number in chosen if not 0 <= number < count]
    if unknown or not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"devices must be different numbers of the {count} cards that the driver offers "
            f"(from 0), got {list(devices)}"
        )
    return list(chosen)


def device_name(device: int | None) -> str:
    """Return `cpu` for None, else `cuda:0` and so on."""
    return "cpu" if device is None else f"cuda:{device}"


def memory_of(provider: str, device: int) -> tuple[str, int]:
    """Return kind and number of the memory that a session on a device uses, for onnxruntime."""
    return ("cuda", device) if provider in (CUDA, TENSORRT) else ("cpu", 0)


def with_options(
    providers: Sequence[str],
    device: int | None,
    *,
    precision: str,
    options: Mapping[str, Any],
) -> list[tuple[str, dict[str, str]]]:
    """Return providers with their options, as onnxruntime's sessions take them.

    Args:
        providers: onnxruntime's names of the providers, the preferred one first.
        device: number of the card; None for the CPU.
        precision: precision of the graph.
        options: the caller's options for the preferred provider; they override the defaults.
    """
    made = [(name, _defaults(name, device, precision)) for name in providers]
    made[0][1].update({str(name): _text(value) for name, value in options.items()})
    return made


def _defaults(provider: str, device: int | None, precision: str) -> dict[str, str]:
    if provider == CUDA:
        return {
            "device_id": str(device or 0),
            # By default the arena doubles, which would waste the memory of a second batch.
            "arena_extend_strategy": "kSameAsRequested",
            # TF32 keeps 10 of 23 bits of the mantissa: the vectors of a text alone and of the
            # same text in a batch would differ by 1e-3.
            "use_tf32": "0",
        }
    if provider == TENSORRT:
        cache = cache_folder() / "tensorrt"
        cache.mkdir(parents=True, exist_ok=True)
        return {
            "device_id": str(device or 0),
            "trt_fp16_enable": "1" if precision == "fp16" else "0",
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(cache),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(cache),
        }
    return {}


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _number(device: object) -> int:
    try:
        return operator.index(device)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise ConfigError(f"devices must be numbers of cards or 'all', got {device!r}") from None
