"""Cases about several requests, closed connections and slow clients: RFC 9112, sections 8 and 9."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from http_corpus.messages import (
    ANSWER,
    AUTHORIZED,
    BODY,
    CHUNKED,
    END,
    HALF_CLOSE,
    HIDDEN,
    LIMIT,
    SLOW,
    Case,
    chunked,
    chunks,
    get,
    head,
    post,
    refused,
    served,
)


def pipelines() -> Iterator[Case]:
    def numbered(count: int) -> tuple[bytes, tuple[str, ...]]:
        ids = tuple(f"n{i}" for i in range(count))
        makers = itertools.cycle((post, get))
        return b"".join(next(makers)(b"X-Request-Id: " + name.encode()) for name in ids), ids

    for count in (2, 3, 10, 50):
        sent, ids = numbered(count)
        yield Case(f"9.3.2 {count} requests", (sent,), (200,) * count, ids=ids)
    sent, ids = numbered(5)
    for cut in (1, len(sent) // 3, len(sent) // 2, len(sent) - 1):
        yield Case(
            f"9.3.2 5 requests, cut at {cut}", (sent[:cut], 0.02, sent[cut:]), (200,) * 5, ids=ids
        )
    bad = b"GET / HTTP/1.1\r\n\r\n"
    first = post(b"X-Request-Id: first")
    yield refused("9.3.2 then one without Host", first + bad, 200, 400)
    yield refused(
        "9.3.2 three, then one that is none", first * 3 + b"\x00" * 20, 200, 200, 200, 400
    )
    yield refused("9.3.2 then one with two lengths", first + post(b"Content-Length: 3"), 200, 400)
    yield refused(
        "9.3.2 then one of a wrong coding",
        first + chunked(b"", coding=b"Transfer-Encoding: x"),
        200,
        400,
    )
    yield refused("9.3.2 then a bad chunk", first + chunked(b"zz\r\n"), 200, 400)
    yield refused("9.3.2 two, then a bad chunk", first * 2 + chunked(b"zz\r\n"), 200, 200, 400)
    yield refused("9.3.2 then a head too large", first + get(b"X-A: " + b"a" * 2 * LIMIT), 200, 431)
    yield refused("9.3.2 then CONNECT", first + head(b"CONNECT a:80 HTTP/1.1") + HIDDEN, 200, 405)
    yield served("9.3.2 a bad body between", first + post(body=b"{") + first, 200, 400, 200)
    yield served("9.3.2 an empty line between", first + END + first, 200, 200)
    yield served("9.3.2 two empty lines between", first + END * 2 + first, 200, 200)
    yield Case("9.3.2 then half a request", (first + get()[:20], 0.05, get()[20:]), (200, 200))
    yield served(
        "9.3.2 a streamed answer first",
        post(body=b'{"inputs":[' + b'"word",' * 99 + b'"word"]}', path=b"/embed_all") + first,
        200,
        200,
    )
    yield served("9.3.2 HEAD, then GET", head(b"HEAD /health HTTP/1.1") + get(), 200, 200)
    yield refused("9.3.2 more than wait behind one", first + get() * 150, *(200,) * 101 + (429,))


def persistence() -> Iterator[Case]:
    for value in (b"close", b"Close", b"keep-alive, close", b"close, x", b"CLOSE"):
        field = b"Connection: " + value
        yield refused(f"9.6 {value!r}", get(field), 200)
        yield refused(f"9.6 {value!r}, and a request after it", get(field) + HIDDEN, 200)
        yield refused(f"9.6 {value!r} with a body", post(field) + HIDDEN, 200)
    for value in (b"keep-alive", b"Keep-Alive", b"foo", b"", b"closed", b"x, y"):
        yield served(f"9.3 {value!r}", get(b"Connection: " + value))
    yield Case("9.3 after a while", (get(), 0.1, get()), (200, 200))
    yield Case("9.3 after an error", (post(body=b"{"), 0.02, post()), (400, 200))
    for sent in (get(version=b"HTTP/1.0"), get(b"Connection: keep-alive", version=b"HTTP/1.0")):
        yield refused(f"9.3 of HTTP/1.0, {len(sent)} bytes", sent, 200)
    no_key = b"GET /info HTTP/1.1\r\nHost: a\r\n\r\n"
    yield refused("9.6 without the key", no_key + HIDDEN, 401)


def half_closed() -> Iterator[Case]:
    slow = post(body=b'{"inputs":[' + b'"some words of a text",' * 200 + b'"word"]}')
    for name, sent, statuses in [
        ("a request", post(), (200,)), ("a request without content", get(), (200,)),
        ("a request that takes a while", slow, (200,)), ("three requests", post() * 3, (200,) * 3),
        ("slow ones", slow * 2, (200,) * 2), ("chunks", chunked(chunks(BODY)), (200,)),
        ("an offer to upgrade", post(b"Connection: Upgrade", b"Upgrade: h2c"), (200,)),
        ("one of HTTP/1.0", post().replace(b"HTTP/1.1", b"HTTP/1.0", 1), (200,)),
        ("a bad request", b"GET\r\n\r\n", (400,)),
        ("a good and a bad one", post() + b"\x00", (200, 400)),
        ("half a head", get()[:30], (400,)), ("half a body", post()[:-5], (400,)),
        ("half a chunk", chunked(b"11\r\n" + BODY[:5]), (400,)),
        ("no last chunk", chunked(b"11\r\n" + BODY + END), (400,)),
        ("half a trailer", chunked(chunks(BODY)[:-2] + b"X-A: "), (400,)),
        ("a request and half a head", post() + get()[:30], (200, 400)),
        ("a request and half a body", post() + post()[:-5], (200, 400)),
        ("nothing", b"", ()), ("an empty line", END, ()),
    ]:  # fmt: skip
        yield Case(f"9.6 half closed after {name}", (sent, HALF_CLOSE), statuses, closes=True)
        yield Case(
            f"9.6 half closed a while after {name}", (sent, 0.05, HALF_CLOSE), statuses, closes=True
        )


def cut_off() -> Iterator[Case]:
    """Yield messages that end too early, because the client closes its side (section 8)."""
    whole = chunked(chunks(BODY[:4], BODY[4:], trailer=b"X-A: 1\r\n"))
    for i in range(5, len(whole) - 1, 9):
        yield Case(f"8 chunks that end at {i}", (whole[:i], HALF_CLOSE), (400,), closes=True)
    whole = post(b"Upgrade: h2c", b"Connection: Upgrade")
    for i in range(5, len(whole) - 1, 11):
        yield Case(f"8 an offer that ends at {i}", (whole[:i], HALF_CLOSE), (400,), closes=True)


def segments() -> Iterator[Case]:
    """Yield one request in pieces of any size, which must not make a difference."""
    whole = chunked(chunks(BODY[:4], BODY[4:], trailer=b"X-Request-Id: t\r\n"), b"X-Request-Id: s")
    for i in range(1, len(whole), 7):
        yield Case(f"7.1 cut at {i}", (whole[:i], 0.01, whole[i:]), (200,), ids=("s",))
    bytewise = tuple(
        itertools.chain.from_iterable((whole[i : i + 1], 0.001) for i in range(len(whole)))
    )
    yield Case("7.1 byte by byte", bytewise, (200,), ids=("s",))


def slow() -> Iterator[Case]:
    """Yield messages that come too late for limits of a second."""
    yield Case("9.5 no request", (SLOW,), ())
    yield Case("9.5 half a request line", (b"GET /hea", SLOW), (408,), closes=True)
    yield Case("9.5 half a head", (get()[:40], SLOW), (408,), closes=True)
    yield Case("9.5 no body", (post()[: -len(BODY)], SLOW), (408,), closes=True)
    yield Case("9.5 half a body", (post()[:-5], SLOW), (408,), closes=True)
    yield Case("9.5 half a chunk", (chunked(b"11\r\n" + BODY[:5]), SLOW), (408,), closes=True)
    yield Case("9.5 no last chunk", (chunked(b"11\r\n" + BODY + END), SLOW), (408,), closes=True)
    yield Case(
        "9.5 half a trailer", (chunked(chunks(BODY)[:-2] + b"X: 1"), SLOW), (408,), closes=True
    )
    offer = post(b"Connection: Upgrade", b"Upgrade: h2c")
    yield Case("9.5 no body behind an offer", (offer[: -len(BODY)], SLOW), (408,), closes=True)
    yield Case(
        "9.5 a request and half a head", (post() + get()[:40], SLOW), (200, 408), closes=True
    )
    yield Case(
        "9.5 a request and no body", (post() + post()[: -len(BODY)], SLOW), (200, 408), closes=True
    )
    drops = tuple(itertools.chain.from_iterable((b"X-A: 1\r\n", 0.1) for _ in range(25)))
    yield Case("9.5 a head in drops", (b"GET /health HTTP/1.1\r\n", *drops), (408,), closes=True)
    drops = tuple(itertools.chain.from_iterable((b" ", 0.1) for _ in range(25)))
    yield Case("9.5 a body in drops", (post()[: -len(BODY)], *drops), (408,), closes=True)
    drops = tuple(itertools.chain.from_iterable((b"1\r\n \r\n", 0.1) for _ in range(25)))
    yield Case("9.5 chunks in drops", (chunked(b""), *drops), (408,), closes=True)
    drops = tuple(itertools.chain.from_iterable((b"X: 1\r\n", 0.1) for _ in range(25)))
    yield Case("9.5 trailers in drops", (chunked(chunks(BODY)[:-2]), *drops), (408,), closes=True)


def early_answers() -> Iterator[Case]:
    """Yield requests that are answered before their body, after which the connection closes."""
    for name, begin, status in [
        ("no such path", post(path=b"/nowhere")[: -len(BODY)], 404),
        ("a method that is not there", post(path=b"/health")[: -len(BODY)], 405),
        ("a GET with content", get(b"Content-Length: 17"), 200),
        ("chunks of no such path", head(b"POST /nowhere HTTP/1.1", CHUNKED), 404),
        ("no key", post()[: -len(BODY)].replace(AUTHORIZED + END, b""), 401),
        ("an encoding", post(b"Content-Encoding: br")[: -len(BODY)], 415),
    ]:  # fmt: skip
        yield refused(f"9.3 {name}, and no body", begin, status)
        yield Case(f"9.3 {name}, and a late body", (begin, ANSWER, BODY), (status,), closes=True)
        yield Case(f"9.3 {name}, and a request", (begin, ANSWER, HIDDEN), (status,), closes=True)
    large = b" " * 2_000_000
    for name, sent, status in [
        ("too large", post(body=large), 413),
        ("no key, much content", post(body=large).replace(AUTHORIZED + END, b""), 401),
        ("no path, much content", post(body=large, path=b"/nowhere"), 404),
        ("a bad head, much content", post(b"X : 1", body=large), 400),
        ("two lengths, much content", post(b"Content-Length: 1", body=large), 400),
        ("a bad chunk, much content", chunked(b"zz\r\n" + large), 400),
    ]:  # fmt: skip
        yield refused(f"9.6 {name}", sent, status)


def old_version() -> Iterator[Case]:
    old = b"HTTP/1.0"
    line = b"POST /embed HTTP/1.0"
    many = b'{"inputs":[' + b'"word",' * 199 + b'"word"]}'
    yield refused("2.3 1.0 without Host", head(b"GET /health HTTP/1.0", host=None), 200)
    yield refused("2.3 1.0 with two Hosts", head(b"GET /health HTTP/1.0", b"Host: b"))
    yield refused("2.3 1.0 with content", head(line, b"Content-Length: 17") + BODY, 200)
    yield refused(
        "6.1 1.0 has an answer in no chunks",
        head(line, b"Content-Length: %d" % len(many)) + many,
        200,
    )
    yield refused(
        "6.1 1.0 has token vectors in no chunks",
        head(b"POST /embed_all HTTP/1.0", b"Content-Length: 17") + BODY,
        200,
    )
    yield refused("6.1 1.0 with chunks", head(line, CHUNKED) + chunks(BODY))
    yield refused(
        "6.1 1.0 with chunks and a length",
        head(line, CHUNKED, b"Content-Length: 27") + chunks(BODY),
    )
    yield refused("2.3 1.0 and a request after it", get(version=old) + HIDDEN, 200)
    yield refused(
        "2.3 1.0, kept alive, and a request after it",
        get(b"Connection: keep-alive", version=old) + HIDDEN,
        200,
    )
