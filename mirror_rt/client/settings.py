"""Hold a client's settings: where the server is, and how to ask it."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field, fields
from typing import Any

from mirror_rt.errors import ConfigError
from mirror_rt.pipeline.prompts import check_text

API_KEY_VARIABLE = "MIRROR_RT_API_KEY"


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked arguments of a client; `Client` describes them."""

    url: str
    model: str | None
    lang: str | None
    timeout: float
    retries: int
    batch_size: int
    concurrency: int
    verify: ssl.SSLContext | bool = field(compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url must begin with http:// or https://, got {self.url!r}")
        check_text("model", self.model)
        check_text("lang", self.lang)
        if not 0 < self.timeout < math.inf:
            raise ConfigError(f"timeout must be above 0 seconds, got {self.timeout}")
        for name, least in (("retries", 0), ("batch_size", 1), ("concurrency", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")

    def arguments(self) -> dict[str, Any]:
        """Return all arguments by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def checked_key(key: str | None) -> str | None:
    """Return an API key; ConfigError if it cannot be sent in a header."""
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(
            f"api_key (or {API_KEY_VARIABLE}) must be printable ASCII without spaces, and not empty"
        )
    return key
