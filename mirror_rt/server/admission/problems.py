"""What goes wrong with a request: its status, and the error object that its client expects."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import orjson

from mirror_rt.errors import (
    BundleError,
    ClosedError,
    ConfigError,
    DeadlineError,
    InvalidTextError,
    NonFiniteError,
    OverloadedError,
)
from mirror_rt.tokens.chunking import too_long_reason

__all__ = ["Problem", "ProblemShape", "openai_shape", "problem_of", "tei_shape"]


@dataclass
class Problem(Exception):  # noqa: N818  # it is no fault of ours
    """An answer that is not what the client asked for.

    Attributes:
        status: of HTTP.
        message: one line for the client; never a path, a text or a trace.
        code: a word for programs; None where the status says all.
        param: the field that is wrong.
        headers: of the answer.
        close: end the connection after it.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


ProblemShape = Callable[[Problem], bytes]

# The words of both protocols for a status.
_OPENAI_TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}
_TEI_TYPES = {
    400: "Empty", 401: "Unauthorized", 404: "NotFound", 408: "Timeout", 413: "Validation",
    422: "Validation", 424: "Backend", 429: "Overloaded", 503: "Unhealthy",
}  # fmt: skip


def openai_shape(problem: Problem) -> bytes:
    """The error object of OpenAI."""
    kind = "server_error" if problem.status >= 424 else "invalid_request_error"
    return orjson.dumps(
        {
            "error": {
                "message": problem.message,
                "type": _OPENAI_TYPES.get(problem.status, kind),
                "param": problem.param,
                "code": problem.code,
            }
        }
    )


def tei_shape(problem: Problem) -> bytes:
    """The error object of text-embeddings-inference."""
    kind = "Malformed" if problem.code == "malformed" else _TEI_TYPES.get(problem.status, "Error")
    return orjson.dumps({"error": problem.message, "error_type": kind})


def problem_of(error: BaseException, max_length: int = 0) -> Problem | None:
    """What an error means to the client; None for one that nobody foresaw.

    Args:
        error: raised while answering.
        max_length: of the model, by which a text that is too long is known.
    """
    match error:
        case Problem():
            return error
        case OverloadedError():
            return overloaded(error)
        case NonFiniteError():
            return Problem(424, "the model gives no finite vector for this input", "backend")
        case InvalidTextError():
            return _invalid(error, max_length)
        case ConfigError():
            return Problem(422, _line(error), "invalid_value")
        case DeadlineError() | asyncio.TimeoutError():
            return Problem(408, "no vector within the time given: try again later", "timeout")
        case ClosedError():
            return Problem(503, "the server is stopping", "stopping", headers={"retry-after": "1"})
        case BundleError():
            return Problem(424, "the model failed on this input", "backend")
        case RecursionError() | msgspec.DecodeError() | UnicodeDecodeError():
            return malformed(error)
    return None


def malformed(error: Exception) -> Problem:
    """A body that is no JSON (400), or JSON of another form than expected (422)."""
    if isinstance(error, msgspec.ValidationError):
        message, _, where = str(error).partition(" - at `$")
        param = where.rstrip("`").lstrip(".") or None
        return Problem(422, f"{param or 'the body'}: {message}", "invalid_value", param)
    if isinstance(error, RecursionError):
        return Problem(400, "the body is nested too deeply", "malformed")
    if isinstance(error, UnicodeDecodeError):
        return Problem(400, "the body is not valid UTF-8", "malformed")
    return Problem(400, f"the body is not valid JSON: {_line(error)}", "malformed")


def overloaded(error: OverloadedError) -> Problem:
    """Too much waits: when to come back."""
    seconds = max(1, math.ceil(error.retry_after or 1))
    return Problem(
        429,
        f"overloaded: try again in {seconds} s",
        "overloaded",
        headers={"retry-after": str(seconds)},
    )


def _invalid(error: InvalidTextError, max_length: int) -> Problem:
    i, reason = error.items[0]
    more = f" (and {len(error.items) - 1} more)" if len(error.items) > 1 else ""
    long = reason == too_long_reason(max_length)
    if long:
        reason = f"it is longer than {max_length} tokens, and truncation was not asked for"
    status, code = (413, "too_long") if long else (422, "invalid_text")
    return Problem(status, f"item {i}: {reason}{more}", code, "input")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
