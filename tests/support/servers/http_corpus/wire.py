"""Play a case to a server with a strict client that takes nothing of its answers on trust."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from dataclasses import dataclass
from typing import BinaryIO

from http_corpus.messages import ANSWER, AUTHORIZED, HALF_CLOSE, Case

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*")
_LAST = (
    b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    + AUTHORIZED
    + (b"\r\nX-Request-Id: last\r\n\r\n")
)


@dataclass(frozen=True)
class Answer:
    """One final answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class BrokenAnswerError(Exception):
    """The server sent something that is no valid HTTP/1.1 answer."""


class _ClosedError(BrokenAnswerError):
    """The server closed the connection without an answer."""


def play(case: Case, port: int, timeout: float = 10.0) -> list[Answer]:
    """Play a case, and return all answers until the server closes the connection.

    If the connection should stay open, a last request proves that it is, and that nothing of the
    case is left in it.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as file:
            answers = _Answers(case, file)
            _send(connection, case, answers)
            while not case.closes and len(answers.read) < len(case.statuses):
                answers.read_one()
            if not case.closes:
                connection.sendall(_LAST)
            answers.read_rest()
            return answers.read


def _send(connection: socket.socket, case: Case, answers: _Answers) -> None:
    try:
        for part in case.sent:
            if isinstance(part, bytes):
                connection.sendall(part)
            elif part is HALF_CLOSE:
                connection.shutdown(socket.SHUT_WR)
            elif part is ANSWER:
                answers.read_one()
            else:
                time.sleep(part)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server refused it meanwhile; its answer is read next


class _Answers:
    """Reads the answers to a case."""

    def __init__(self, case: Case, file: BinaryIO) -> None:
        self.read: list[Answer] = []
        self._file = file
        first = next((part for part in case.sent if isinstance(part, bytes)), b"").lstrip()
        self._old = b" HTTP/1.0\r\n" in first
        self._head = first.startswith(b"HEAD ")  # the answer has no body

    def read_one(self) -> None:
        answer = _read_answer(self._file, head=self._head and not self.read, old=self._old)
        if answer is None:
            raise _ClosedError(f"closed after {[answer.status for answer in self.read]}")
        self.read.append(answer)

    def read_rest(self) -> None:
        with contextlib.suppress(_ClosedError):
            while True:
                self.read_one()


def _read_answer(file: BinaryIO, *, head: bool, old: bool) -> Answer | None:
    """Read the next final answer; None if the server closed the connection before one."""
    while True:
        begin = _read_head(file)
        if begin is None:
            return None
        status, headers = begin
        if status >= 200:
            break
        if old:
            raise BrokenAnswerError(f"HTTP/1.0 got an interim answer {status}")
    if head or status in (204, 304):
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
