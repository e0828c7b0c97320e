"""Check the head of a request before its body is read: where it ends, and its target.

If two servers in a row disagree on these questions, an attacker can make them see different
requests. So whatever the standard leaves open is refused here (RFC 9112, sections 3 and 6).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Names are in lower case, as in ASGI.
Headers = Iterable[tuple[bytes, bytes]]

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_ORIGIN = re.compile(rb"(?:[Hh][Tt][Tt][Pp][Ss]?://[^/?#@]+)?([/?].*)?")
_MOST_DIGITS = 19  # of a length in bytes: more than any disk holds, and less than 2**64


class RefusedError(Exception):
    """A request that cannot be read, so that nothing after it on its connection can be read."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message  # one line of ASCII for the client


def check_head(method: bytes, version: str, headers: Headers) -> None:
    """Refuse a head that is ambiguous, or of a protocol that this server does not speak."""
    if version not in ("1.0", "1.1"):
        raise RefusedError(505, "expected HTTP/1.1 or HTTP/1.0")
    if method == b"CONNECT":
        raise RefusedError(405, "this is no proxy: CONNECT is not supported")
    headers = list(headers)
    _check_host([value for name, value in headers if name == b"host"], version)
    for name, value in headers:
        if name == b"content-length" and len(value) > _MOST_DIGITS:
            raise RefusedError(400, "the Content-Length has too many digits")
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings:
        _check_codings(b",".join(codings), version)


def origin_form(url: bytes, method: bytes) -> bytes:
    """Return the target as a path and a query (RFC 9112, 3.2), or the `*` of OPTIONS.

    A client may send the whole address, as it does to a proxy; then the path may be empty.
    """
    if url == b"*" and method == b"OPTIONS":
        return url
    found = _ORIGIN.fullmatch(url)
    if not url or found is None or b"#" in url:
        raise RefusedError(400, "the target is neither a path nor an address of http")
    path = found[1] or b"/"
    return path if path.startswith(b"/") else b"/" + path


def resumed_head(headers: Headers, *, keep_alive: bool) -> bytes:
    """Make a head, of checked headers, that says where a body ends, and nothing else."""
    framing = (b"content-length", b"transfer-encoding")
    kept = [(name, value) for name, value in headers if name in framing]
    if not keep_alive:
        kept.append((b"connection", b"close"))
    lines = [b"POST / HTTP/1.1", *(b"%s: %s" % field for field in kept), b"", b""]
    return b"\r\n".join(lines)


def _check_host(hosts: list[bytes], version: str) -> None:
    if not hosts and version == "1.1":
        raise RefusedError(400, "there is no Host header")
    if len(hosts) > 1:
        raise RefusedError(400, "there is more than one Host header")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise RefusedError(400, "the Host header is no host and port")


def _check_codings(value: bytes, version: str) -> None:
    """Accept only `chunked`: this server knows no other coding."""
    codings = [coding.strip(b" \t").lower() for coding in value.split(b",")]
    if version == "1.0":
        raise RefusedError(400, "HTTP/1.0 has no Transfer-Encoding")
    if codings.count(b"chunked") != 1 or codings[-1] != b"chunked":
        raise RefusedError(400, "Transfer-Encoding must end in chunked, once")
    if len(codings) > 1:
        raise RefusedError(501, "no Transfer-Encoding but chunked is supported")


def refusal(message: str, fields: Iterable[tuple[bytes, bytes]], *, has_body: bool) -> bytes:
    """Return an answer without its first line, after which the connection ends."""
    body = b'{"error":"' + message.encode("ascii") + b'","error_type":"Malformed"}'
    headers = dict(fields) | {
        b"content-type": b"application/json",
        b"connection": b"close",
        b"content-length": str(len(body)).encode(),
    }
    lines = [b"%s: %s\r\n" % field for field in headers.items()]
    return b"".join([*lines, b"\r\n", body if has_body else b""])
