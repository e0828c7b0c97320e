"""Send one request as the settings say: interpret each answer, and decide when to try again."""

from __future__ import annotations

import email.utils
import json
import math
import random
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mirror_rt.errors import (
    ConfigError,
    DeadlineError,
    InvalidTextError,
    MirrorError,
    OverloadedError,
    ServerError,
)
from mirror_rt.pipeline.prompts import check_text

API_KEY_VARIABLE = "MIRROR_RT_API_KEY"
# The statuses with which the server, or a proxy in front of it, says that it may succeed later.
_LATER = frozenset({429, 502, 503, 504})
_TOO_LONG = "context_length_exceeded"  # with OpenAI's status for it, 400
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_ITEM = re.compile(r"item (\d+): (.*)", re.DOTALL)


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
            raise ConfigError(field="timeout", expected="above 0 seconds", value=self.timeout)
        for name, least in (("retries", 0), ("batch_size", 1), ("concurrency", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    field=name, expected=f"an integer of at least {least}", value=value
                )

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


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of a server; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """Return the content as JSON; ServerError if it is not JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            raise self.strange("the server's answer is not JSON") from None

    def strange(self, why: str) -> ServerError:
        """Return the error for an answer that mirror-rt does not give."""
        return ServerError(f"{why}: is it mirror-rt serve?", status=self.status)


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason in words why no answer came."""

    reason: str
    out_of_time: bool = False  # no time is left


class Attempts:
    """The attempts at one request, whose first text is the caller's text number `first`."""

    def __init__(self, settings: Settings, first: int = 0) -> None:
        self._settings = settings
        self._first = first
        self._until = time.monotonic() + settings.timeout
        self._tries = self._failures = 0

    @property
    def left(self) -> float:
        """Return the seconds that are left, above 0; DeadlineError if none are."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineError(self._settings.timeout)
        return left

    def pause(self, outcome: Reply | Failure) -> float | None:
        """Return the seconds to wait before the next attempt; None if this one succeeded."""
        if isinstance(outcome, Reply) and outcome.status == 200:
            return None
        error, later = self._meaning(outcome)
        self._tries += 1
        # A server that is too busy does work, so waiting for it is limited by time alone.
        busy = isinstance(outcome, Reply) and outcome.status == 429
        self._failures += not busy
        if not later or not self._settings.retries or self._failures > self._settings.retries:
            raise error
        # Jitter keeps clients that were refused together from coming back together.
        longest = min(_FIRST_PAUSE * 2 ** (self._tries - 1), _LONGEST_PAUSE)
        pause = random.uniform(longest / 2, longest)
        if isinstance(outcome, Reply) and (seconds := _retry_after(outcome)) is not None:
            pause = max(pause, seconds * random.uniform(1.0, 1.25))
        if time.monotonic() + pause >= self._until:
            raise error
        return pause

    def _meaning(self, outcome: Reply | Failure) -> tuple[MirrorError, bool]:
        """Return the error that an outcome means, and whether it may pass."""
        if isinstance(outcome, Reply):
            return self._error(outcome), outcome.status in _LATER
        if outcome.out_of_time:
            return DeadlineError(self._settings.timeout), False
        where = self._settings.url
        return ServerError(f"the server at {where} cannot be reached: {outcome.reason}"), True

    def _error(self, reply: Reply) -> MirrorError:
        message, code = _read_problem(reply)
        item = _ITEM.fullmatch(message)
        if item is not None and (reply.status in (413, 422) or code == _TOO_LONG):
            return InvalidTextError([(self._first + int(item[1]), item[2])])
        if reply.status == 408:
            return DeadlineError(self._settings.timeout)
        if reply.status == 429:
            said = message.removeprefix("overloaded: ")
            return OverloadedError(f"the server says {said!r}", retry_after=_retry_after(reply))
        if reply.status == 413:
            return ConfigError(f"{message}: give the client a smaller batch_size")
        if reply.status == 422 or code == "model_not_found":
            return ConfigError(message)
        if reply.status == 401:
            message += f" (api_key= of the client, or {API_KEY_VARIABLE})"
        name = reply.headers.get("x-request-id")
        return ServerError(f"the server answers {reply.status}: {message}", status=reply.status,
                           request_id=name)  # fmt: skip


def _read_problem(reply: Reply) -> tuple[str, str | None]:
    """Return the message and the code of an error object of either protocol."""
    try:
        error = json.loads(reply.content)["error"]
        if isinstance(error, dict):
            return str(error["message"]), error.get("code")
        return str(error), None
    except (ValueError, LookupError, TypeError):
        return "without saying why; is it mirror-rt serve?", None


def _retry_after(reply: Reply) -> float | None:
    """Return the seconds that the server asks to wait, given as a number or as a date."""
    text = reply.headers.get("retry-after")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
