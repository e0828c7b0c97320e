"""The NVIDIA cards that sessions run on, and the options that onnxruntime gets for them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mirror_rt.errors import ConfigError, Setting
from mirror_rt.inference.providers import CUDA
from mirror_rt.inference.shared_libraries import free_memory, nvidia_cards

Devices = Sequence[int] | Literal["all"] | None

# While one run computes on a card, a second one is uploaded and queued behind it.
RUNS_IN_FLIGHT = 2

# Providers whose sessions run on a card. Tests add the CPU provider, to test without a card how
# buffers are bound and how work is shared among devices.
_ON_CARDS = frozenset({CUDA})

# The part of a card's free memory that the arena of a session leaves: the libraries of CUDA need
# it for kernels and workspaces, and so do other sessions and processes.
_LEFT_SHARE, _LEFT_LEAST = 1 / 16, 512 << 20


def on_card(provider: str) -> bool:
    """Return whether sessions of a provider run on a card."""
    return provider in _ON_CARDS


def choose_devices(devices: Devices, provider: str) -> list[int | None]:
    """Return the numbers of the cards to open a session on; [None] for the CPU.

    Args:
        devices: numbers of the cards, `"all"`, or None for the first.
        provider: onnxruntime's name of the execution provider.
    """
    if not on_card(provider):
        if devices is not None:
            raise ConfigError(
                Setting("devices", devices),
                ": devices are NVIDIA cards, and this session is on the CPU; leave it out, or "
                "ask for the provider cuda",
            )
        return [None]
    if devices is None:
        return [0]
    count = nvidia_cards()
    if isinstance(devices, str):
        if devices != "all":
            raise ConfigError(field="devices", expected="numbers of cards or 'all'", value=devices)
        return list(range(count))
    chosen = [_number(device) for device in devices]
    unknown = [number for number in chosen if not 0 <= number < count]
    if unknown or not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(
            field="devices",
            expected=f"different numbers of the {cards(count)} that the driver offers (from 0)",
            value=list(devices),
        )
    return list(chosen)


def cards(count: int) -> str:
    """Return `1 NVIDIA card`, `2 NVIDIA cards` and so on."""
    return f"{count} NVIDIA card{'' if count == 1 else 's'}"


def device_name(device: int | None) -> str:
    """Return `cpu` for None, else `cuda:0` and so on."""
    return "cpu" if device is None else f"cuda:{device}"


def memory_of(provider: str, device: int) -> tuple[str, int]:
    """Return kind and number of the memory that a session on a device uses, for onnxruntime."""
    return ("cuda", device) if provider == CUDA else ("cpu", 0)


def with_options(
    providers: Sequence[str], device: int | None, options: Mapping[str, Any]
) -> list[tuple[str, dict[str, str]]]:
    """Return providers with their options, as onnxruntime's sessions take them.

    Args:
        providers: onnxruntime's names of the providers, the preferred one first.
        device: number of the card; None for the CPU.
        options: the caller's options for the preferred provider; they override the defaults.
    """
    made = [(name, _defaults(name, device or 0)) for name in providers]
    made[0][1].update({str(name): _text(value) for name, value in options.items()})
    return made


def _defaults(provider: str, device: int) -> dict[str, str]:
    if provider != CUDA:
        return {}
    options = {
        "device_id": str(device),
        # The arena grows by doubling regions, of 1 GB at most, and any batch finds room in parts of
        # them. Regions as small as the request would only fit batches of the same shape:
        # with many shapes the memory would be full of regions that nothing fits into.
        "arena_extend_strategy": "kNextPowerOfTwo",
        # TF32 keeps 10 of 23 bits of the mantissa: the vectors of a text alone and of the
        # same text in a batch would differ by 1e-3.
        "use_tf32": "0",
    }
    if (free := free_memory(device)) is not None:
        left = max(int(free * _LEFT_SHARE), _LEFT_LEAST)
        options["gpu_mem_limit"] = str(max(free - left, free // 2))
    return options


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _number(device: object) -> int:
    try:
        return operator.index(device)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise ConfigError(
            field="devices", expected="numbers of cards or 'all'", value=device
        ) from None
