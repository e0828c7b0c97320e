"""Turn every failure of a request into a status and the error object its client expects."""

from __future__ import annotations

import asyncio
import math
import re
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

TOO_LONG = "context_length_exceeded"  # clients of OpenAI look for it, with status 400
HUNG_UP = 499  # nginx's status for a client that hung up; nobody gets it


@dataclass
class Problem(Exception):  # noqa: N818  # it is no fault of ours
    """An answer that is not the one for which the client asked."""

    status: int  # of HTTP
    message: str  # one line for the client; never contains a path, a text or a stack trace
    code: str | None = None  # a word for programs; None where the status says everything
    param: str | None = None  # name of the field that is wrong
    headers: dict[str, str] = field(default_factory=dict)  # additional ones of the answer
    close: bool = False  # whether to close the connection after the answer

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


def unusable(field: str, why: str) -> Problem:
    """Say why the value of a field cannot be used."""
    return Problem(422, f"{field}: {why}", "invalid_value", field)


def too_large(field: str, why: str) -> Problem:
    """Say that a field holds too much for one request."""
    return Problem(413, f"{field}: {why}", "too_large", field)


def try_again(message: str, code: str = "not_ready") -> Problem:
    """Say that the server cannot answer at the moment."""
    return Problem(503, message, code, headers={"retry-after": "1"})


ProblemShape = Callable[[Problem], bytes]

# Matches the first half of a surrogate pair that is so near the end of the body that the decoder
# cannot read the six characters of the second half; msgspec then reports only truncated data.
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u[Dd][89ABab][0-9A-Fa-f]{2}(?!\\)[\x00-\xff]{1,5}\Z"
)
# The name that each protocol has for an error of this status.
_OPENAI_TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}
_TEI_TYPES = {
    400: "Empty", 401: "Unauthorized", 404: "NotFound", 408: "Timeout", 413: "Validation",
    422: "Validation", 424: "Backend", 429: "Overloaded", 503: "Unhealthy",
}  # fmt: skip


# The names in requests of options of `encode`, where they are others.
_FIELDS = {"truncate_dim": "dimensions", "normalize_embeddings": "normalize"}


def openai_shape(problem: Problem) -> bytes:
    """Return OpenAI's error object as JSON, whose message Cohere's and Jina's clients find, too."""
    kind = "server_error" if problem.status >= 424 else "invalid_request_error"
    kind = _OPENAI_TYPES.get(problem.status, kind)
    error = {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}
    return orjson.dumps({"error": error, "message": problem.message, "detail": problem.message})


def tei_shape(problem: Problem) -> bytes:
    """Return text-embeddings-inference's error object as JSON."""
    kind = "Malformed" if problem.code == "malformed" else _TEI_TYPES.get(problem.status, "Error")
    return orjson.dumps({"error": problem.message, "error_type": kind})


def inference_shape(problem: Problem) -> bytes:
    """Return the error object of the Open Inference Protocol as JSON."""
    return orjson.dumps({"error": problem.message})


def problem_of(error: BaseException, max_length: int = 0) -> Problem | None:
    """Return the problem that an error is to the client; None for an unforeseen error.

    `max_length`, the most tokens of the model's input, tells a text that is too long from others.
    """
    match error:
        case Problem():
            return error
        case OverloadedError():
            return overloaded(error)
        case InvalidTextError():
            return _invalid(error, max_length)
        case ConfigError():
            param = None if error.field is None else _FIELDS.get(error.field, error.field)
            return Problem(422, _line(error), "invalid_value", param)
        case DeadlineError() | asyncio.TimeoutError():
            return Problem(408, "no vector within the time given: try again later", "timeout")
        case ClosedError():
            return try_again("the server is stopping", "stopping")
        case BundleError():
            return Problem(424, "the model failed on this input", "backend")
        case RecursionError() | msgspec.DecodeError() | UnicodeDecodeError():
            return malformed(error)
    return None


def malformed(error: Exception, body: bytes = b"") -> Problem:
    """Describe a body that is not JSON (400), or not JSON of the expected form (422).

    The end of the body shows details that the decoder's message leaves out.
    """
    if isinstance(error, msgspec.ValidationError):
        message, _, where = str(error).partition(" - at `$")
        if param := where.rstrip("`").lstrip("."):
            return unusable(param, message)
        return Problem(422, f"the body: {message}", "invalid_value")
    if isinstance(error, RecursionError):
        return Problem(400, "the body is nested too deeply", "malformed")
    if isinstance(error, UnicodeDecodeError):
        return Problem(400, "the body is not valid UTF-8", "malformed")
    reason = _line(error)
    if "surrogate" in reason or ("truncated" in reason and _LONE_SURROGATE.search(body[-64:])):
        place = re.search(r" \(byte \d+\)", reason)
        reason = "it has half of a surrogate pair, \\ud800 to \\udfff, without the other half"
        reason += place[0] if place else ""
    return Problem(400, f"the body is not valid JSON: {reason}", "malformed")


def overloaded(error: OverloadedError) -> Problem:
    """Say that too much is waiting, and when to come back."""
    seconds = max(1, math.ceil(error.retry_after or 1))
    headers = {"retry-after": str(seconds)}
    return Problem(429, f"overloaded: try again in {seconds} s", "overloaded", headers=headers)


def _invalid(error: InvalidTextError, max_length: int) -> Problem:
    i, reason = error.items[0]
    more = f" (and {len(error.items) - 1} more)" if len(error.items) > 1 else ""
    long = reason == too_long_reason(max_length)
    if long:
        reason = (
            f"it is longer than {max_length} tokens, and truncation was not asked for (in the "
            "request, or by --on-too-long truncate of the server)"
        )
    status, code = (413, "too_long") if long else (422, "invalid_text")
    if isinstance(error, NonFiniteError):
        status, code = 424, "backend"
    return Problem(status, f"item {i}: {reason}{more}", code, "input")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
