"""Cases about offers of another protocol, which the server ignores: RFC 9110, section 7.8."""

from __future__ import annotations

from collections.abc import Iterator

from http_corpus.messages import (
    BODY,
    CHUNKED,
    END,
    HIDDEN,
    Case,
    chunks,
    get,
    head,
    post,
    refused,
    served,
)


def _offers() -> Iterator[tuple[str, tuple[bytes, ...]]]:
    settings = b"HTTP2-Settings: AAMAAABkAAQAAP__"
    yield "h2c", (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", settings)
    yield "websocket", (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
                        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
    yield "TLS/1.0", (b"Connection: upgrade", b"Upgrade: TLS/1.0")
    yield "several", (b"Connection: keep-alive, Upgrade", b"Upgrade: foo/2, h2c, bar")
    yield "in capitals", (b"CONNECTION: UPGRADE", b"UPGRADE: H2C")
    yield "twice", (b"Connection: Upgrade", b"Upgrade: h2c", b"Connection: Upgrade", b"Upgrade: a")
    yield "without Connection", (b"Upgrade: h2c",)
    yield "without Upgrade", (b"Connection: Upgrade",)


def upgrades() -> Iterator[Case]:
    for name, offer in _offers():
        case = f"9110 7.8 {name}"
        begin = head(b"POST /embed HTTP/1.1", *offer, b"Content-Length: %d" % len(BODY))
        coded = head(b"POST /embed HTTP/1.1", *offer, CHUNKED)
        hidden = head(b"POST /embed HTTP/1.1", *offer, b"Content-Length: %d" % len(HIDDEN))
        yield served(f"{case}, in one piece", begin + BODY)
        yield Case(f"{case}, the body after a while", (begin, 0.03, BODY), (200,))
        yield served(f"{case}, chunked", coded + chunks(BODY[:3], BODY[3:]))
        yield Case(f"{case}, chunked, after a while", (coded, 0.03, chunks(BODY)), (200,))
        yield served(f"{case}, a request as body", hidden + HIDDEN, 400)
        yield Case(f"{case}, a request as body, after a while", (hidden, 0.03, HIDDEN), (400,))
        yield Case(f"{case}, a request in chunks", (coded, 0.03, chunks(HIDDEN)), (400,))
        yield served(f"{case}, then another", begin + BODY + get(), 200, 200)
        yield Case(f"{case}, then the same", ((begin + BODY) * 3,), (200,) * 3)
        yield served(f"{case}, without content", get(*offer))
        yield served(f"{case}, without content, then another", get(*offer) + get(), 200, 200)
        yield served(
            f"{case}, of a path that is not there",
            hidden.replace(b"/embed", b"/nowhere", 1) + HIDDEN,
            404,
        )
        trailer = chunks(BODY, trailer=b"Authorization: Bearer other\r\n")
        yield served(f"{case}, with a trailer", coded + trailer)
        yield refused(f"{case}, with a bad chunk", coded + b"11 \r\n" + BODY)
        yield refused(f"{case}, with two framings", begin[:-2] + CHUNKED + END * 2 + BODY)
        wants = b"Expect: 100-continue"
        asked = begin[:-2] + wants + END * 2
        yield Case(f"{case}, that waits for leave", (asked, 0.03, BODY), (200,))
    close = post(b"Connection: close, Upgrade", b"Upgrade: h2c")
    yield refused("9110 7.8 and close", close + HIDDEN, 200)
    old = post(b"Connection: Upgrade", b"Upgrade: h2c").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    yield refused("9110 7.8 of HTTP/1.0", old, 200)


def split_upgrades() -> Iterator[Case]:
    """Yield an offer that comes in two pieces, cut at many places."""
    whole = post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"X-Request-Id: u")
    for i in range(3, len(whole), 9):
        yield Case(f"9110 7.8 cut at {i}", (whole[:i], 0.01, whole[i:]), (200,), ids=("u",))
