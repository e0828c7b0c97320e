"""The angles by which queries and keys are rotated for their positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# The scaling of RoFormer, whose angles are float64.
EXACT = "exact"
_LENGTH = "original_max_position_embeddings"
# The keys of config.json for each kind of scaling, and their usual values. The frequencies of
# `dynamic` change in texts alone that are longer than the model has positions.
_SCALINGS: dict[str, dict[str, float | None]] = {
    "default": {},
    "dynamic": {},
    "linear": {"factor": None},
    "llama3": {"factor": None, "low_freq_factor": None, "high_freq_factor": None, _LENGTH: None},
    "yarn": {"factor": None, _LENGTH: None, "beta_fast": 32, "beta_slow": 1, "attention_factor": 0},
}
_KNOWN = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}.union(*_SCALINGS.values())


class Rotation(NamedTuple):
    """The frequencies of a layer: powers of `theta`, and how they are scaled."""

    theta: float
    scaling: str
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, given: Mapping[str, Any], theta: Any) -> Rotation:
        """Return the rotation that config.json describes.

        Raises:
            ValueError: the engine does not compute it.
        """
        kind = given.get("rope_type", given.get("type")) or "default"
        theta = given.get("rope_theta", theta)
        usual = _SCALINGS.get(kind)
        numbers = [theta, *((given.get(key) or other) for key, other in (usual or {}).items())]
        plain = given.keys() <= _KNOWN and given.get("partial_rotary_factor") in (None, 1)
        if (
            usual is None
            or not plain
            or not all(map(_fits, numbers))
            or theta <= 1
            or 0 in numbers[:5]
        ):
            raise ValueError(f"a rotation by {given or theta!r:.200}")
        return cls(float(theta), kind, tuple(map(float, numbers[1:])))

    def table(self, size: int, longest: int) -> Floats:
        """Return the cosines, and then the sines, of each position: float32 [longest, size]."""
        angles = np.arange(longest, dtype=np.float32)[:, None] * self.frequencies(size)
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1, dtype=np.float32)
        if self.scaling == "yarn":
            factor, *_, attention = self.numbers
            table *= np.float32(attention or (0.1 * math.log(factor) + 1 if factor > 1 else 1))
        return table

    def frequencies(self, size: int) -> npt.NDArray[np.floating]:
        """Return the frequencies, [size / 2], rounded as PyTorch does it."""
        if self.scaling == EXACT:
            return self.theta ** -(np.arange(0, size, 2) / size)
        # Each step in float32, and the power to its nearest.
        exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        powers = (self.theta ** exponents.astype(np.float64)).astype(np.float32)
        plain = np.float32(1) / powers
        if self.scaling == "linear":
            return plain / np.float32(self.numbers[0])
        if self.scaling == "llama3":
            factor, low, high, length = self.numbers
            waves = np.float32(2 * math.pi) / plain
            scaled = np.where(waves > length / low, plain / np.float32(factor), plain)
            with np.errstate(divide="ignore", invalid="ignore"):  # nothing is between equal ends
                share = (np.float32(length) / waves - np.float32(low)) / np.float32(high - low)
                between = (1 - share) * scaled / np.float32(factor) + share * scaled
            return np.where((waves < length / high) | (waves > length / low), scaled, between)
        if self.scaling == "yarn":
            factor, length, *turns, _ = self.numbers
            ends = [
                size * math.log(length / (n * 2 * math.pi)) / (2 * math.log(self.theta))
                for n in turns
            ]
            first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), size - 1)
            steps = np.arange(size // 2, dtype=np.float32) - np.float32(first)
            kept: Floats = 1 - np.clip(steps / np.float32(last - first or 0.001), 0, 1)
            slow: Floats = np.float32(1) / (np.float32(factor) * powers)
            return slow * (1 - kept) + plain * kept
        return plain


def _fits(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < 1e12
