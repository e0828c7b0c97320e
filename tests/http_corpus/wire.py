"""A client that sends bytes and counts answers: it trusts nothing that a server says."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from typing import BinaryIO

from http_corpus.messages import AUTHORIZED, HALF_CLOSE, Case

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*")
_LAST = (
    b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    + AUTHORIZED
    + (b"\r\nX-Request-Id: last\r\n\r\n")
)


@dataclass(frozen=True)
class Answer:
    """One final answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class BrokenAnswerError(Exception):
    """What came back is no answer of HTTP/1.1."""


def play(case: Case, port: int, timeout: float = 10.0) -> list[Answer]:
    """Play a case, and return all answers until the server closed.

    Where the connection should stay open, a last request proves that it is, and that nothing of
    the case is left in it.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send(connection, case)
        old = b"HTTP/1.0" in next((part for part in case.sent if isinstance(part, bytes)), b"")
        methods = _methods(case)
        with connection.makefile("rb") as file:
            answers = []
            while not case.closes and len(answers) < len(case.statuses):
                answers.append(_read_answer(file, next(methods), old=old) or _closed(case, answers))
            if not case.closes:
                connection.sendall(_LAST)
            while (answer := _read_answer(file, next(methods), old=old)) is not None:
                answers.append(answer)
            return answers


def _closed(case: Case, answers: list[Answer]) -> Answer:
    raise BrokenAnswerError(f"{case.section}: closed after {[a.status for a in answers]}")


def _methods(case: Case):
    """Which of the answers have no body, as the answer to HEAD has none."""
    first = next((part for part in case.sent if isinstance(part, bytes)), b"").lstrip()
    yield first[:4]
    while True:
        yield b"GET "


def _send(connection: socket.socket, case: Case) -> None:
    try:
        for part in case.sent:
            if isinstance(part, bytes):
                connection.sendall(part)
            elif part is HALF_CLOSE:
                connection.shutdown(socket.SHUT_WR)
            else:
                time.sleep(part)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it was refused meanwhile; what was answered is read next


def _read_answer(file: BinaryIO, method: bytes, *, old: bool) -> Answer | None:
    """Read the next final answer; None where the server closed before one."""
    while True:
        head = _read_head(file)
        if head is None:
            return None
        status, headers = head
        if status >= 200:
            break
        if old:
            raise BrokenAnswerError(f"HTTP/1.0 got an interim answer {status}")
    if method == b"HEAD" or status in (204, 304):
        return Answer(status, headers, b"")
    if "transfer-encoding" in headers:
        if old or headers["transfer-encoding"] != "chunked" or "content-length" in headers:
            raise BrokenAnswerError(f"framed as {headers}")
        return Answer(status, headers, _read_chunks(file))
    if "content-length" in headers:
        return Answer(status, headers, _exactly(file, int(headers["content-length"])))
    return Answer(status, headers, file.read())


def _read_head(file: BinaryIO) -> tuple[int, dict[str, str]] | None:
    line = file.readline(65536)
    if not line:
        return None
    found = _STATUS.fullmatch(line.removesuffix(b"\r\n"))
    if found is None:
        raise BrokenAnswerError(f"no status line: {line!r}")
    headers: dict[str, str] = {}
    while (line := file.readline(65536)) != b"\r\n":
        name, colon, value = line.decode("latin-1").removesuffix("\r\n").partition(":")
        name = name.lower()
        if not colon or name in headers:
            raise BrokenAnswerError(f"header {line!r}")
        headers[name] = value.strip()
    return int(found[1]), headers


def _read_chunks(file: BinaryIO) -> bytes:
    parts = []
    while size := int(file.readline(100).removesuffix(b"\r\n"), 16):
        parts.append(_exactly(file, size))
        _line_end(file)
    _line_end(file)
    return b"".join(parts)


def _line_end(file: BinaryIO) -> None:
    if (found := file.read(2)) != b"\r\n":
        raise BrokenAnswerError(f"expected the end of a chunk, got {found!r}")


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise BrokenAnswerError(f"an answer ends after {len(data)} of {size} bytes")
    return data
