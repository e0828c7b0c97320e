"""Tell whether kept work may be continued: by everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mirror_rt.errors import DataError, MirrorError


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that decides the result of some work: a JSON value for each name."""

    values: Mapping[str, Any]

    @classmethod
    def read(cls, text: str | bytes, where: object) -> Identity:
        """Read the identity that was kept as JSON in the file `where`; DataError if damaged."""
        try:
            return cls(dict(json.loads(text)))
        except (ValueError, TypeError) as error:
            raise DataError(f"{where} is damaged: {error}") from error

    @property
    def digest(self) -> str:
        """The SHA-256 of the values."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()

    def differences(self, kept: Mapping[str, Any]) -> Iterator[str]:
        """Yield in words each value, by order of the names, that differs from that of kept work."""
        before, now = (json.loads(json.dumps(one, default=repr)) for one in (kept, self.values))
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield f"{name} was {before.get(name)!r}, now {now.get(name)!r}"

    def check(
        self, kept: Mapping[str, Any], of: str, advice: str, error: type[MirrorError]
    ) -> None:
        """Raise an error for kept work of another identity; it begins with `of`, its name."""
        for difference in self.differences(kept):
            raise error(f"{of}: {difference}; {advice}")
