"""The parts of which requests are composed, and the type of a case."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

KEY = "key-of-the-corpus"
AUTHORIZED = b"Authorization: Bearer " + KEY.encode()
BODY = b'{"inputs":"word"}'
# A request that must never be answered if it is part of the content of another one.
HIDDEN = b"GET /status HTTP/1.1\r\nHost: hidden\r\n" + AUTHORIZED + b"\r\n\r\n"
END = b"\r\n"
LIMIT = 32 << 10  # bytes of a head
SLOW = 1.6  # seconds: longer than the server waits
CHUNKED = b"Transfer-Encoding: chunked"


class Signal(Enum):
    """What a client can do besides sending."""

    HALF_CLOSE = "closes its side"
    ANSWER = "waits for an answer"


HALF_CLOSE, ANSWER = Signal.HALF_CLOSE, Signal.ANSWER
Sent = bytes | float | Signal


@dataclass(frozen=True)
class Case:
    """One connection.

    Attributes:
        section: section of the standard, with words that tell the case from others.
        sent: what the client does, in order: sends bytes, is silent for some seconds, waits for one
            more answer, or closes its side.
        statuses: statuses of the answers, in order.
        closes: whether the server then closes the connection; else it must answer another request.
        ids: request ids of the answers, if their order matters.
        error_fields: fields of an error's JSON object that say what is wrong.
    """

    section: str
    sent: tuple[Sent, ...]
    statuses: tuple[int, ...]
    closes: bool = False
    ids: tuple[str, ...] | None = None
    error_fields: tuple[str, ...] = ("error",)


def head(line: bytes, *fields: bytes, host: bytes | None = b"Host: a") -> bytes:
    """Return the head of a request, with the API key."""
    first = [line] if host is None else [line, host]
    return END.join([*first, AUTHORIZED, *fields, b"", b""])


def post(*fields: bytes, body: bytes = BODY, path: bytes = b"/embed", length: bool = True) -> bytes:
    """Return a complete request for a vector."""
    framing = [b"Content-Length: %d" % len(body)] if length else []
    return head(b"POST %s HTTP/1.1" % path, *framing, *fields) + body


def get(*fields: bytes, path: bytes = b"/health", version: bytes = b"HTTP/1.1") -> bytes:
    return head(b"GET %s %s" % (path, version), *fields)


def chunks(*parts: bytes, trailer: bytes = b"") -> bytes:
    coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return coded + b"0\r\n" + trailer + b"\r\n"


def chunked(content: bytes, *fields: bytes, coding: bytes = CHUNKED) -> bytes:
    """Return a chunked request whose body on the wire is `content`."""
    return head(b"POST /embed HTTP/1.1", coding, *fields) + content


def refused(section: str, sent: bytes, *statuses: int) -> Case:
    """Return a case after which the server closes the connection; the status is 400."""
    return Case(section, (sent,), statuses or (400,), closes=True)


def served(section: str, sent: bytes, *statuses: int) -> Case:
    """Return a case after which the connection stays open; the status is 200."""
    return Case(section, (sent,), statuses or (200,))
