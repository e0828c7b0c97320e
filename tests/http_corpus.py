"""What clients, proxies and attackers send, byte by byte, and the answers that it must have.

A table of cases: the bytes of a connection, with pauses and the end of the client's side among
them, the statuses of all answers in their order, and whether the server closes the connection
then. Every case names the section of RFC 9112 (or, with a 9110 before it, of RFC 9110) that it is
of. Nothing here knows which server it is played to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

KEY = "key-of-the-corpus"
AUTHORIZED = b"Authorization: Bearer " + KEY.encode()
BODY = b'{"inputs":"word"}'
# A request that must never be answered where it is the content of another one.
HIDDEN = b"GET /status HTTP/1.1\r\nHost: hidden\r\n" + AUTHORIZED + b"\r\n\r\n"
END = b"\r\n"
LIMIT = 32 << 10  # bytes of a head
SLOW = 1.6  # seconds: longer than the server waits
CHUNKED = b"Transfer-Encoding: chunked"


class Signal(Enum):
    """What a client does besides sending."""

    HALF_CLOSE = "closes its side"


HALF_CLOSE = Signal.HALF_CLOSE
Sent = bytes | float | Signal


@dataclass(frozen=True)
class Case:
    """One connection.

    Attributes:
        section: of the standard, with words that tell the case from others.
        sent: in this order: bytes, seconds of silence, the end of the client's side.
        statuses: of the answers, in their order.
        closes: whether the server closes then; else it must answer one more request.
        ids: of the answers, where their order is to be seen.
    """

    section: str
    sent: tuple[Sent, ...]
    statuses: tuple[int, ...]
    closes: bool = False
    ids: tuple[str, ...] | None = None


def head(line: bytes, *fields: bytes, host: bytes | None = b"Host: a") -> bytes:
    """The head of a request, with the key."""
    first = [line] if host is None else [line, host]
    return END.join([*first, AUTHORIZED, *fields, b"", b""])


def post(*fields: bytes, body: bytes = BODY, path: bytes = b"/embed", length: bool = True) -> bytes:
    """A whole request for a vector."""
    framing = [b"Content-Length: %d" % len(body)] if length else []
    return head(b"POST %s HTTP/1.1" % path, *framing, *fields) + body


def get(*fields: bytes, path: bytes = b"/health", version: bytes = b"HTTP/1.1") -> bytes:
    return head(b"GET %s %s" % (path, version), *fields)


def chunks(*parts: bytes, trailer: bytes = b"") -> bytes:
    coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return coded + b"0\r\n" + trailer + b"\r\n"


def chunked(content: bytes, *fields: bytes, coding: bytes = CHUNKED) -> bytes:
    """A request whose body is `content` as it stands on the wire."""
    return head(b"POST /embed HTTP/1.1", coding, *fields) + content


def refused(section: str, sent: bytes, status: int = 400) -> Case:
    """A case that ends the connection."""
    return Case(section, (sent,), (status,), closes=True)


def served(section: str, sent: bytes, status: int = 200) -> Case:
    """A case after which the connection goes on."""
    return Case(section, (sent,), (status,))


def all_cases() -> list[Case]:
    """Every case, each with a name of its own."""
    makers = (
        request_lines, targets, hosts, fields, control_characters, sizes, lengths, codings, chunk_sizes,
        chunk_extensions, trailers, upgrades, split_upgrades, pipelines, persistence, expectations,
        repeated_headers, content_codings, half_closed, cut_off, segments, slow, early_answers,
        old_version, json_bodies,
    )  # fmt: skip
    cases = [case for maker in makers for case in maker()]
    names = [case.section for case in cases]
    assert len(set(names)) == len(names), {name for name in names if names.count(name) > 1}
    return cases


def request_lines() -> Iterator[Case]:
    for method, status in [
        (b"DELETE", 405), (b"PUT", 405), (b"PATCH", 405), (b"TRACE", 405), (b"OPTIONS", 405),
        (b"POST", 405), (b"PROPFIND", 405), (b"GET", 200), (b"HEAD", 200),
    ]:  # fmt: skip
        yield served(f"3.1 method {method.decode()}", head(method + b" /health HTTP/1.1"), status)
    for method in (
        b"get",
        b"Get",
        b"FROBNICATE",
        b"G ET",
        b"G\tET",
        b"GE(T",
        b"",
        b"\x00",
        b"\x80",
    ):
        yield refused(f"3.1 method {method!r}", head(method + b" /health HTTP/1.1"))
    for version, status in [
        (b"HTTP/2.0", 505), (b"HTTP/0.9", 505), (b"HTTP/1.2", 400), (b"HTTP/3.0", 400),
        (b"HTTP/1", 400), (b"HTTP/1.10", 400), (b"HTTP/11", 400), (b"HTTP/1.1.1", 400),
        (b"http/1.1", 400), (b"HTTPS/1.1", 400), (b"HTTP 1.1", 400), (b"ICE/1.0", 400),
        (b"HTTP/-1.1", 400), (b"HTTP/1.1\x00", 400), (b"HTTP/1.1 x", 400),
        (b"HTTP/1.1\t", 400), (b"", 400),
    ]:  # fmt: skip
        yield refused(f"2.3 version {version!r}", get(version=version), status)
    yield refused(
        "2.3 HTTP/0.9, in which nothing but the target is said", b"GET /health\r\n\r\n", 505
    )
    yield served("3 two spaces before the target", head(b"GET  /health HTTP/1.1"))
    yield refused("3 a tab before the target", head(b"GET\t/health HTTP/1.1"))
    yield refused("3 no target", head(b"GET HTTP/1.1"))
    yield refused("3 a space in the target", head(b"GET /hea lth HTTP/1.1"))
    yield refused("3 white space before the method", head(b" GET /health HTTP/1.1"))
    yield refused("2.2 a line of text", b"hello there\r\n\r\n")
    yield refused("2.2 a TLS greeting", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    yield refused("2.2 only zeros", b"\x00" * 64)
    yield refused("2.2 a response", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    yield refused(
        "2.2 the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04", 400
    )
    yield refused("2.2 SSH", b"SSH-2.0-OpenSSH_9.2\r\n")
    yield served("2.2 one empty line before", END + get())
    yield served("2.2 three empty lines before", END * 3 + get())
    yield refused("2.2 a line break without CR after the request line",
                  get().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"))  # fmt: skip
    yield refused("2.2 a CR without line break", get().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r"))


def targets() -> Iterator[Case]:
    for target, status in [
        (b"http://a/health", 200), (b"HTTP://A/health", 200), (b"https://a/health", 200),
        (b"http://a:80/health", 200), (b"http://b/health", 200), (b"http://a/health?x=1", 200),
        (b"http://a", 200), (b"http://a/", 200), (b"http://a?x=1", 200), (b"/health?x=1", 200),
        (b"/health?a?b", 200), (b"/%68ealth", 200), (b"/health?%00", 200), (b"/%ff", 404),
        (b"/%00", 404), (b"/%", 404), (b"/health/", 307), (b"//health", 404), (b"/./health", 404),
        (b"/a/../health", 404), (b"/health;x", 404), (b"/%2e%2e/etc/passwd", 404),
    ]:  # fmt: skip
        yield served(f"3.2 target {target!r}", get(path=target), status)
    for target in [
        b"health", b"*", b"http://", b"http:///health", b"http:/health", b"ftp://a/health",
        b"file:///etc/passwd", b"a:80", b"http://u@a/health", b"/health#x", b"/\x00", b"/\x7f",
        b"/\xc3\xa9", b"/\xff", b"http://a#x", b"?x", b"#", b"javascript://a/",
    ]:  # fmt: skip
        yield refused(f"3.2 target {target!r}", get(path=target))
    yield served("3.2.4 OPTIONS *", head(b"OPTIONS * HTTP/1.1"), 404)
    for target in (b"a:80", b"127.0.0.1:22", b"/health", b"http://a/"):
        sent = head(b"CONNECT " + target + b" HTTP/1.1") + HIDDEN
        yield Case(f"3.2.3 CONNECT {target!r}", (sent,), (405,), closes=True)


def hosts() -> Iterator[Case]:
    line = b"GET /health HTTP/1.1"
    for host in (b"", b"a", b"A.Example", b"a:8080", b"127.0.0.1", b"[::1]:80", b"[::1]", b"a:",
                 b"a_b.example", b"xn--nxasmq6b", b"a%20b"):  # fmt: skip
        yield served(f"3.2 Host {host!r}", head(line, host=b"Host: " + host))
    for host in (b"a b", b"a/b", b"a@b", b"http://a", b"a,b", b"a:b", b"a?b", b"a#b", b"[::1", b"\xe9",
                 b'"a"', b"a\\b", b"<a>"):  # fmt: skip
        name = f"3.2 Host {host!r}"
        status = 200 if host == b"a,b" else 400  # a comma is a sub-delimiter of a name
        case = head(line, host=b"Host: " + host)
        yield served(name, case) if status == 200 else refused(name, case)
    yield refused("3.2 no Host", head(line, host=None))
    yield refused("3.2 two equal Hosts", head(line, b"Host: a"))
    yield refused("3.2 two Hosts", head(line, b"Host: b"))
    yield refused("3.2 a Host whose name ends in a space", head(line, b"Host : a", host=None))
    yield refused("3.2 no Host, but the address", head(b"GET http://a/health HTTP/1.1", host=None))


def fields() -> Iterator[Case]:
    for name, field in [
        ("no space after the colon", b"X-A:1"), ("spaces around the value", b"X-A: \t 1 \t "),
        ("an empty value", b"X-A:"), ("Latin-1 in a value", b"X-A: caf\xe9"),
        ("UTF-8 in a value", b"X-A: \xe2\x82\xac"), ("a quoted value", b'X-A: "a, b"'),
        ("a value of colons", b"X-A: ::::"), ("a name of all token characters", b"!#$%&'*+-.^_`|~1a: x"),
        ("the same name twice", b"X-A: 1\r\nX-A: 2"), ("capital letters", b"CONTENT-TYPE: text/plain"),
    ]:  # fmt: skip
        yield served(f"5 {name}", get(field))
    for name, field in [
        ("a space before the colon", b"X-A : 1"), ("a tab before the colon", b"X-A\t: 1"),
        ("a folded value", b"X-A: 1\r\n 2"), ("a value folded by a tab", b"X-A: 1\r\n\t2"),
        ("a folded empty value", b"X-A:\r\n 1"), ("no colon", b"X-A"), ("no name", b": 1"),
        ("a space in the name", b"X A: 1"), ("a line break without CR", b"X-A: 1\nX-B: 2"),
        ("a CR in a value", b"X-A: 1\rX-B: 2"), ("CR CR LF", b"X-A: 1\r\r\nX-B: 2"),
        ("a name in UTF-8", b"X-\xc3\xa9: 1"), ("quotes in a name", b'"X": 1'),
        ("brackets in a name", b"X[A]: 1"), ("a semicolon in a name", b"X;A: 1"),
        ("a slash in a name", b"X/A: 1"), ("a comma in a name", b"X,A: 1"),
        ("a line of one colon", b":"), ("a line of one space", b" "),
    ]:  # fmt: skip
        yield refused(f"5 {name}", get(field))
    first = END.join([b"GET /health HTTP/1.1", b" X-A: 1", b"Host: a", AUTHORIZED, b"", b""])
    yield refused("5 white space before the first name", first)
    yield refused("5 a line break alone at the end", get()[:-2] + b"\n" + HIDDEN)


def control_characters() -> Iterator[Case]:
    for code in (*range(9), 11, 12, *range(14, 32), 127):
        yield refused(f"9110 5.5 byte {code} in a value", get(b"X-A: 1%c2" % code))
    for code in (0, 1, 9, 31, 127, 128, 255):
        yield refused(f"9110 5.1 byte {code} in a name", get(b"X-%c: 1" % code))


def sizes() -> Iterator[Case]:
    yield served("9110 5.4 a large header", get(b"X-A: " + b"a" * (LIMIT - 1000)))
    yield served("9110 5.4 500 headers", get(*(b"X-%d: 1" % i for i in range(500))))
    yield refused("9110 5.4 a header too large", get(b"X-A: " + b"a" * 2 * LIMIT), 431)
    yield refused("9110 5.4 headers too many", get(*(b"X-%d: 1" % i for i in range(9000))), 431)
    yield refused("9110 5.4 a name too long", get(b"a" * 2 * LIMIT + b": 1"), 431)
    yield refused("9110 4.1 a target too long", get(path=b"/" + b"a" * 2 * LIMIT), 431)
    endless = b"GET / HTTP/1.1\r\nX-A: " + b"a" * 4 * LIMIT
    yield Case(
        "9110 5.4 a header without end",
        (endless, 0.05, endless[-2 * LIMIT :], 0.05, b"a"),
        (431,),
        closes=True,
    )
    endless = b"GET /" + b"a" * 4 * LIMIT
    yield Case(
        "9110 4.1 a target without end",
        (endless, 0.05, endless[-2 * LIMIT :], 0.05, b"a"),
        (431,),
        closes=True,
    )


def lengths() -> Iterator[Case]:
    size = len(BODY)
    for value in (b"%d", b" %d ", b"\t%d", b"0%d", b"0000000%d"):
        field = b"Content-Length:" + value % size
        yield served(f"6.2 {field!r}", post(field, length=False))
    for value in [
        b"-1", b"+17", b"-0", b"0x11", b"1e1", b"17.0", b"1 7", b"17;", b"17,17", b"17, 18", b"17,",
        b",17", b"", b" ", b"abc", b"17a", b"a17", b'"17"', b"1_7", b"\xb2", b"1\xa07", b"None",
        b"18446744073709551616", b"99999999999999999999", b"9" * 4300, b"0" * 4300 + b"17", b"0" * 5000,
        b"1" * 30000, b"17\x00", b"17\x0b", b"\x0c17",
    ]:  # fmt: skip
        name = value if len(value) < 40 else value[:3] + b"... of %d" % len(value)
        yield refused(
            f"6.2 Content-Length {name!r}", post(b"Content-Length: " + value, length=False)
        )
    yield refused("6.3 two equal lengths", post(b"Content-Length: %d" % size))
    yield refused("6.3 two lengths", post(b"Content-Length: 3"))
    yield refused("6.3 two lengths, the first of which is 0",
                  head(b"POST /embed HTTP/1.1", b"Content-Length: 0", b"Content-Length: 17") + BODY)  # fmt: skip
    yield refused("6.3 a length and a name that looks like it", post(b"Content-Length : 0"))
    yield refused("6.3 a length, folded", post(b"Content-Length:\r\n 17", length=False))
    yield served("6.3 no length, no body", head(b"POST /embed HTTP/1.1"), 400)
    yield served("6.3 a length of 0", head(b"POST /embed HTTP/1.1", b"Content-Length: 0"), 400)
    yield served("6.3 a name in capitals", post(b"CONTENT-LENGTH: %d" % size, length=False))
    yield served("6.3 a request as content", post(body=HIDDEN), 400)
    yield served("6.3 two requests as content", post(body=HIDDEN * 2), 400)
    yield served("6.3 content with GET", get(b"Content-Length: %d" % len(HIDDEN)) + HIDDEN)
    yield served(
        "6.3 content with HEAD", head(b"HEAD /health HTTP/1.1", b"Content-Length: 5") + b"12345"
    )
    yield served("6.3 content with DELETE",
                 head(b"DELETE /embed HTTP/1.1", b"Content-Length: %d" % len(HIDDEN)) + HIDDEN, 405)  # fmt: skip
    yield served(
        "6.3 content of a path that is not there", post(body=HIDDEN, path=b"/nowhere"), 404
    )
    yield Case("6.3 a length below the body's", (post(b"Content-Length: 3", length=False),),
               (400, 400), closes=True)  # fmt: skip
    yield Case("9110 8.6 a body that is too large is not waited for",
               (head(b"POST /embed HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 999999999999"),),
               (413,), closes=True)  # fmt: skip
    yield Case("9110 8.6 the largest length that is read",
               (head(b"POST /embed HTTP/1.1", b"Expect: 100-continue", b"Content-Length: " + b"9" * 19),),
               (413,), closes=True)  # fmt: skip


def codings() -> Iterator[Case]:
    content = chunks(BODY)
    for coding in (b"Transfer-Encoding: Chunked", b"transfer-encoding: CHUNKED",
                   b"TRANSFER-ENCODING:chunked", b"Transfer-Encoding: \t chunked"):  # fmt: skip
        yield served(f"7 {coding!r}", chunked(content, coding=coding))
    for value in (b"gzip, chunked", b"deflate, chunked", b"compress,chunked", b"br, chunked",
                  b"identity, chunked", b"x-gzip, chunked", b"gzip, deflate, chunked",
                  b"foo;a=b, chunked", b"gzip,chunked"):  # fmt: skip
        yield refused(f"7 {value!r}", chunked(content, coding=b"Transfer-Encoding: " + value), 501)
    yield refused("7 two fields, gzip and chunked",
                  chunked(content, coding=b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"), 501)  # fmt: skip
    for value in (b"gzip", b"identity", b"chunked, gzip", b"chunked, identity", b"chunked, chunked",
                  b"", b" ", b"chunked \t", b"chunked;q=1", b"xchunked", b"chunkedx", b'"chunked"', b"chunk", b"cow",
                  b"\x0bchunked", b"chunked\x0b", b"chunked\x00", b"\xa0chunked", b"ch unked",
                  b"chunked chunked", b"\xef\xbb\xbfchunked", b"chunked\xff"):  # fmt: skip
        yield refused(f"6.3 {value!r}", chunked(content, coding=b"Transfer-Encoding: " + value))
    yield refused("6.3 two fields, chunked and chunked", chunked(content, CHUNKED))
    yield refused(
        "6.3 two fields, chunked and identity", chunked(content, b"Transfer-Encoding: identity")
    )
    yield refused(
        "6.3 a coding, folded", chunked(content, coding=b"Transfer-Encoding:\r\n chunked")
    )
    yield refused(
        "6.3 a coding, folded by a tab", chunked(content, coding=b"Transfer-Encoding:\r\n\tchunked")
    )
    yield refused(
        "6.3 a space before the colon", chunked(content, coding=b"Transfer-Encoding : chunked")
    )
    yield refused(
        "6.3 a line break before the name",
        chunked(content, coding=b"X: 1\nTransfer-Encoding: chunked"),
    )
    for length in (b"0", b"3", b"%d" % len(content), b"5"):
        field = b"Content-Length: " + length
        yield refused(f"6.1 chunked, then {field!r}", chunked(content, field))
        yield refused(f"6.1 {field!r}, then chunked",
                      chunked(content, coding=field + END + CHUNKED))  # fmt: skip
    yield refused("6.1 an unknown coding and a length", post(b"Transfer-Encoding: cow"))


def chunk_sizes() -> Iterator[Case]:
    size = len(BODY)

    def first_chunk(line: bytes, end: bytes = END) -> bytes:
        return chunked(line + BODY + end + b"0\r\n\r\n")

    halves = chunks(BODY[:5], BODY[5:])
    yield served("7.1 two chunks", chunked(halves))
    yield served("7.1 a chunk a byte", chunked(chunks(*(BODY[i : i + 1] for i in range(size)))))
    yield served(
        "7.1 capital digits",
        chunked(b"A\r\n" + BODY[:10] + b"\r\n7\r\n" + BODY[10:] + b"\r\n0\r\n\r\n"),
    )
    yield served(
        "7.1 small digits",
        chunked(b"a\r\n" + BODY[:10] + b"\r\n7\r\n" + BODY[10:] + b"\r\n0\r\n\r\n"),
    )
    yield served("7.1 leading zeros", first_chunk(b"00011\r\n"))
    yield served("7.1 many zeros at the end", chunked(b"11\r\n" + BODY + b"\r\n00000\r\n\r\n"))
    yield served("7.1 no content", chunked(b"0\r\n\r\n"), 400)
    yield served("7.1 a request as content", chunked(chunks(HIDDEN)), 400)
    yield served("7.1 a request as content of GET", get(CHUNKED) + chunks(HIDDEN))
    for line in [
        b"0x11\r\n", b"-11\r\n", b"+11\r\n", b"\r\n", b"g\r\n", b" 11\r\n", b"\t11\r\n", b"11 \r\n",
        b"11\t\r\n", b"1 1\r\n", b"11\n", b"11\r", b"11\r\r\n", b"1_1\r\n", b"11,\r\n", b"11h\r\n",
        b"\x0011\r\n", b"11\x00\r\n", b"ffffffffffffffffff\r\n", b"10000000000000011\r\n", b"\xb2\r\n",
        b'"11"\r\n', b"11.0\r\n",
    ]:  # fmt: skip
        yield refused(f"7.1 size {line!r}", first_chunk(line))
    for end in (b"", b"\n", b"\r", b"x\r\n", b"\r\r\n", b"\n\r", b" \r\n", b"xx"):
        yield refused(f"7.1 after a chunk {end!r}", first_chunk(b"11\r\n", end))
    yield refused("7.1 a chunk longer than its size", first_chunk(b"10\r\n"))
    yield refused("7.1 the end without CR", chunked(b"11\r\n" + BODY + b"\r\n0\n\n" + HIDDEN))
    yield refused(
        "7.1 the end with a size of bytes", chunked(b"11\r\n" + BODY + b"\r\n0\r\nX\r\n\r\n")
    )


def chunk_extensions() -> Iterator[Case]:
    rest = BODY + b"\r\n0\r\n\r\n"
    for extension in (b";a", b";a=b", b";a=b;c=d", b';a="b c"', b';a="\\""', b';a="b;c"', b";a=",
                      b";" + b"a" * 5000):  # fmt: skip
        yield served(f"7.1.1 extension {extension[:20]!r}", chunked(b"11" + extension + END + rest))
    yield served("7.1.1 of the last chunk", chunked(b"11\r\n" + BODY + b"\r\n0;a=b\r\n\r\n"))
    for extension in (
        b";a=b\n",
        b";a=b\r",
        b";\x00",
        b";a\nb",
        b';a="\n',
        b";a=b\rX",
        b';a="b\r\n"',
    ):
        yield refused(
            f"7.1.1 extension {extension!r}", chunked(b"11" + extension + END + rest + HIDDEN)
        )
    endless = b"11;" + b"a" * 4 * LIMIT
    yield Case(
        "7.1.1 an extension without end",
        (chunked(endless), 0.05, endless[-2 * LIMIT :], 0.05, b"a"),
        (431,),
        closes=True,
    )


def trailers() -> Iterator[Case]:
    for trailer in [
        b"X-A: 1", b"X-A: 1\r\nX-B: 2", b"Authorization: Bearer other", b"X-Request-Id: other",
        b"Content-Encoding: gzip", b"Content-Type: text/plain", b"Host: b",
        b"Expect: 100-continue", b"X-Request-Timeout: 0",
        b"Authorization: Bearer other\r\nAuthorization: Bearer another", b"Content-Encoding: br",
        b"X-Forwarded-For: 127.0.0.1", b"Trailer: X-A", b"TE: trailers",
    ]:  # fmt: skip
        sent = chunked(chunks(BODY, trailer=trailer + END), b"X-Request-Id: mine")
        yield Case(f"7.1.2 trailer {trailer!r}", (sent,), (200,), ids=("mine",))
    two = chunked(chunks(BODY, trailer=b"X-A: 1" + END)) + get()
    yield Case("7.1.2 a request behind trailers", (two,), (200, 200))
    unnamed = head(b"POST /embed HTTP/1.1", CHUNKED)
    without_key = unnamed.replace(AUTHORIZED + END, b"")
    yield Case("7.1.2 the key comes as a trailer",
               (without_key + chunks(BODY, trailer=AUTHORIZED + END),), (401,), closes=True)  # fmt: skip
    for trailer in [
        b"Connection: close", b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 3",
        b"Connection: Upgrade\r\nUpgrade: h2c", b"Transfer-Encoding: chunked", b"CONTENT-LENGTH: 17",
        b"Transfer-Encoding: gzip", b"Proxy-Connection: close", b"X: 1\r\nConnection: keep-alive",
    ]:  # fmt: skip
        yield refused(f"9110 6.5.1 trailer {trailer!r}",
                      chunked(chunks(BODY, trailer=trailer + END)) + HIDDEN)  # fmt: skip
    for trailer in (b"X-A : 1", b"X-A", b" X-A: 1", b"X-A: 1\r\n 2", b"X-A: 1\nX-B: 2", b"X\x00: 1",
                    b"X-A: \x00", b": 1", b"X-A: 1\rX"):  # fmt: skip
        yield refused(
            f"7.1.2 trailer {trailer!r}", chunked(chunks(BODY, trailer=trailer + END)) + HIDDEN
        )
    yield refused("7.1.2 trailers too large",
                  chunked(chunks(BODY, trailer=b"X-A: " + b"a" * 2 * LIMIT + END)), 431)  # fmt: skip
    yield refused("7.1.2 trailers too many",
                  chunked(chunks(BODY, trailer=b"X-A: 1\r\n" * 9000)), 431)  # fmt: skip
    endless = b"11\r\n" + BODY + b"\r\n0\r\nX-A: " + b"a" * 4 * LIMIT
    yield Case(
        "7.1.2 a trailer without end",
        (chunked(endless), 0.05, endless[-2 * LIMIT :], 0.05, b"a"),
        (431,),
        closes=True,
    )
    yield refused("7.1.2 a request in a trailer", chunked(chunks(BODY)[:-2] + HIDDEN), 400)


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
        yield Case(f"{case}, in one piece", (begin + BODY,), (200,))
        yield Case(f"{case}, the body after a while", (begin, 0.03, BODY), (200,))
        yield Case(f"{case}, chunked", (coded + chunks(BODY[:3], BODY[3:]),), (200,))
        yield Case(f"{case}, chunked, after a while", (coded, 0.03, chunks(BODY)), (200,))
        yield Case(f"{case}, a request as body", (hidden + HIDDEN,), (400,))
        yield Case(f"{case}, a request as body, after a while", (hidden, 0.03, HIDDEN), (400,))
        yield Case(f"{case}, a request in chunks", (coded, 0.03, chunks(HIDDEN)), (400,))
        yield Case(f"{case}, then another", (begin + BODY + get(),), (200, 200))
        yield Case(f"{case}, then the same", ((begin + BODY) * 3,), (200,) * 3)
        yield Case(f"{case}, without content", (get(*offer),), (200,))
        yield Case(f"{case}, without content, then another", (get(*offer) + get(),), (200, 200))
        yield Case(f"{case}, of a path that is not there",
                   (hidden.replace(b"/embed", b"/nowhere", 1) + HIDDEN,), (404,))  # fmt: skip
        trailer = chunks(BODY, trailer=b"Authorization: Bearer other\r\n")
        yield Case(f"{case}, with a trailer", (coded + trailer,), (200,))
        yield Case(f"{case}, with a bad chunk", (coded + b"11 \r\n" + BODY,), (400,), closes=True)
        yield Case(f"{case}, with two framings", (begin[:-2] + CHUNKED + END * 2 + BODY,), (400,),
                   closes=True)  # fmt: skip
        wants = b"Expect: 100-continue"
        asked = begin[:-2] + wants + END * 2
        yield Case(f"{case}, that waits for leave", (asked, 0.03, BODY), (200,))
    close = post(b"Connection: close, Upgrade", b"Upgrade: h2c")
    yield Case("9110 7.8 and close", (close + HIDDEN,), (200,), closes=True)
    old = post(b"Connection: Upgrade", b"Upgrade: h2c").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    yield Case("9110 7.8 of HTTP/1.0", (old,), (200,), closes=True)


def split_upgrades() -> Iterator[Case]:
    """An offer that comes in two pieces, wherever it is cut."""
    whole = post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"X-Request-Id: u")
    for i in range(3, len(whole), 9):
        yield Case(f"9110 7.8 cut at {i}", (whole[:i], 0.01, whole[i:]), (200,), ids=("u",))


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
    yield Case("9.3.2 then one without Host", (first + bad,), (200, 400), closes=True)
    yield Case(
        "9.3.2 three, then one that is none",
        (first * 3 + b"\x00" * 20,),
        (200, 200, 200, 400),
        closes=True,
    )
    yield Case(
        "9.3.2 then one with two lengths",
        (first + post(b"Content-Length: 3"),),
        (200, 400),
        closes=True,
    )
    yield Case("9.3.2 then one of a wrong coding", (first + chunked(b"", coding=b"Transfer-Encoding: x"),),
               (200, 400), closes=True)  # fmt: skip
    yield Case("9.3.2 then a bad chunk", (first + chunked(b"zz\r\n"),), (200, 400), closes=True)
    yield Case(
        "9.3.2 two, then a bad chunk",
        (first * 2 + chunked(b"zz\r\n"),),
        (200, 200, 400),
        closes=True,
    )
    yield Case(
        "9.3.2 then a head too large",
        (first + get(b"X-A: " + b"a" * 2 * LIMIT),),
        (200, 431),
        closes=True,
    )
    yield Case(
        "9.3.2 then CONNECT",
        (first + head(b"CONNECT a:80 HTTP/1.1") + HIDDEN,),
        (200, 405),
        closes=True,
    )
    yield Case("9.3.2 a bad body between", (first + post(body=b"{") + first,), (200, 400, 200))
    yield Case("9.3.2 an empty line between", (first + END + first,), (200, 200))
    yield Case("9.3.2 two empty lines between", (first + END * 2 + first,), (200, 200))
    yield Case("9.3.2 then half a request", (first + get()[:20], 0.05, get()[20:]), (200, 200))
    yield Case("9.3.2 a streamed answer first",
               (post(body=b'{"inputs":[' + b'"word",' * 99 + b'"word"]}', path=b"/embed_all") + first,),
               (200, 200))  # fmt: skip
    yield Case("9.3.2 HEAD, then GET", (head(b"HEAD /health HTTP/1.1") + get(),), (200, 200))
    yield Case("9.3.2 more than wait behind one",
               (first + get() * 150,), (200,) * 101 + (429,), closes=True)  # fmt: skip


def persistence() -> Iterator[Case]:
    for value in (b"close", b"Close", b"keep-alive, close", b"close, x", b"CLOSE"):
        field = b"Connection: " + value
        yield Case(f"9.6 {value!r}", (get(field),), (200,), closes=True)
        yield Case(
            f"9.6 {value!r}, and a request after it", (get(field) + HIDDEN,), (200,), closes=True
        )
        yield Case(f"9.6 {value!r} with a body", (post(field) + HIDDEN,), (200,), closes=True)
    for value in (b"keep-alive", b"Keep-Alive", b"foo", b"", b"closed", b"x, y"):
        yield served(f"9.3 {value!r}", get(b"Connection: " + value))
    yield Case("9.3 after a while", (get(), 0.1, get()), (200, 200))
    yield Case("9.3 after an error", (post(body=b"{"), 0.02, post()), (400, 200))
    for sent in (get(version=b"HTTP/1.0"), get(b"Connection: keep-alive", version=b"HTTP/1.0")):
        yield Case(f"9.3 of HTTP/1.0, {len(sent)} bytes", (sent,), (200,), closes=True)
    no_key = b"GET /info HTTP/1.1\r\nHost: a\r\n\r\n"
    yield Case("9.6 without the key", (no_key + HIDDEN,), (401,), closes=True)


def expectations() -> Iterator[Case]:
    wants = b"Expect: 100-continue"
    begin = head(b"POST /embed HTTP/1.1", wants, b"Content-Length: %d" % len(BODY))
    yield Case("9110 10.1.1 in one piece", (begin + BODY,), (200,))
    yield Case("9110 10.1.1 after a while", (begin, 0.05, BODY), (200,))
    yield Case("9110 10.1.1 twice", (begin, 0.05, BODY + begin, 0.05, BODY), (200, 200))
    yield Case(
        "9110 10.1.1 in capitals",
        (begin.replace(wants, b"EXPECT: 100-Continue"), 0.05, BODY),
        (200,),
    )
    yield Case("9110 10.1.1 without content", (get(wants),), (200,))
    yield Case("9110 10.1.1 chunked", (chunked(b"", wants), 0.03, chunks(BODY)), (200,))
    nowhere = begin.replace(b"/embed", b"/nowhere", 1)
    yield Case("9110 10.1.1 refused, and no body comes", (nowhere,), (404,), closes=True)
    yield Case(
        "9110 10.1.1 refused, and the body comes", (nowhere, 0.05, HIDDEN[:17]), (404,), closes=True
    )
    yield Case(
        "9110 10.1.1 refused, and the next request comes",
        (nowhere, 0.05, get()),
        (404,),
        closes=True,
    )
    unread = head(b"GET /health HTTP/1.1", wants, b"Content-Length: 17")
    yield Case("9110 10.1.1 never asked for", (unread, 0.05, get()), (200,), closes=True)
    old = begin.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    yield Case("9110 10.1.1 of HTTP/1.0", (old, 0.05, BODY), (200,), closes=True)


def repeated_headers() -> Iterator[Case]:
    for first, second in [
        (AUTHORIZED, AUTHORIZED), (AUTHORIZED, b"Authorization: Bearer other"),
        (b"Authorization: Bearer other", AUTHORIZED), (b"authorization: x", AUTHORIZED),
    ]:  # fmt: skip
        sent = END.join([b"GET /health HTTP/1.1", b"Host: a", first, second, b"", b""])
        yield served(f"9110 5.3 {first!r} and {second!r}", sent, 400)
    for field in (b"Content-Encoding: identity", b"Content-Type: application/json",
                  b"X-Request-Id: a", b"X-Request-Timeout: 5"):  # fmt: skip
        yield served(f"9110 5.3 twice {field!r}", post(field, field), 400)
    for a, b in ((b"gzip", b"identity"), (b"identity", b"gzip")):
        sent = post(b"Content-Encoding: " + a, b"Content-Encoding: " + b)
        yield served(f"9110 5.3 Content-Encoding {a!r} and {b!r}", sent, 400)
    yield served("9110 5.3 two that are a list", get(b"Accept: a/b", b"Accept: c/d"))


def content_codings() -> Iterator[Case]:
    for value in (b"identity", b"Identity", b"IDENTITY", b"identity "):
        yield served(f"9110 8.4 {value!r}", post(b"Content-Encoding: " + value))
    for value in (b"gzip", b"GZIP", b"br", b"deflate", b"identity, gzip", b"zstd", b"x"):
        yield Case(
            f"9110 8.4 {value!r}", (post(b"Content-Encoding: " + value),), (415,), closes=True
        )


def half_closed() -> Iterator[Case]:
    slow = post(body=b'{"inputs":[' + b'"some words of a text",' * 200 + b'"word"]}')
    for name, sent, statuses in [
        ("a request", post(), (200,)), ("a request without content", get(), (200,)),
        ("a request that takes a while", slow, (200,)), ("three requests", post() * 3, (200,) * 3),
        ("slow ones", slow * 2, (200,) * 2), ("chunks", chunked(chunks(BODY)), (200,)),
        ("an offer to upgrade", post(b"Connection: Upgrade", b"Upgrade: h2c"), (200,)),
        ("one of HTTP/1.0", post().replace(b"HTTP/1.1", b"HTTP/1.0", 1), (200,)),
        ("a bad request", b"GET\r\n\r\n", (400,)), ("a good and a bad one", post() + b"\x00", (200, 400)),
        ("half a head", get()[:30], (400,)), ("half a body", post()[:-5], (400,)),
        ("half a chunk", chunked(b"11\r\n" + BODY[:5]), (400,)), ("no last chunk", chunked(b"11\r\n" + BODY + END), (400,)),
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
    """A message that ends too early, by the end of the client's side (section 8)."""
    whole = chunked(chunks(BODY[:4], BODY[4:], trailer=b"X-A: 1\r\n"))
    for i in range(5, len(whole) - 1, 9):
        yield Case(f"8 chunks that end at {i}", (whole[:i], HALF_CLOSE), (400,), closes=True)
    whole = post(b"Upgrade: h2c", b"Connection: Upgrade")
    for i in range(5, len(whole) - 1, 11):
        yield Case(f"8 an offer that ends at {i}", (whole[:i], HALF_CLOSE), (400,), closes=True)


def segments() -> Iterator[Case]:
    """Pieces of any size are the same request."""
    whole = chunked(chunks(BODY[:4], BODY[4:], trailer=b"X-Request-Id: t\r\n"), b"X-Request-Id: s")
    for i in range(1, len(whole), 7):
        yield Case(f"7.1 cut at {i}", (whole[:i], 0.01, whole[i:]), (200,), ids=("s",))
    bytewise = tuple(
        itertools.chain.from_iterable((whole[i : i + 1], 0.001) for i in range(len(whole)))
    )
    yield Case("7.1 byte by byte", bytewise, (200,), ids=("s",))


def slow() -> Iterator[Case]:
    """What comes too late, with the limits of a second."""
    yield Case("9.5 no request", (SLOW,), (), closes=False)
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
    """Answers that do not wait for the body: the connection does not, either."""
    for name, begin, status in [
        ("no such path", post(path=b"/nowhere")[: -len(BODY)], 404),
        ("a method that is not there", post(path=b"/health")[: -len(BODY)], 405),
        ("a GET with content", get(b"Content-Length: 17"), 200),
        ("chunks of no such path", head(b"POST /nowhere HTTP/1.1", CHUNKED), 404),
        ("no key", post()[: -len(BODY)].replace(AUTHORIZED + END, b""), 401),
        ("an encoding", post(b"Content-Encoding: gzip")[: -len(BODY)], 415),
    ]:  # fmt: skip
        yield Case(f"9.3 {name}, and no body", (begin,), (status,), closes=True)
        yield Case(f"9.3 {name}, and a late body", (begin, 0.05, BODY), (status,), closes=True)
        yield Case(f"9.3 {name}, and a request", (begin, 0.05, HIDDEN), (status,), closes=True)
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
    yield Case(
        "2.3 1.0 without Host", (head(b"GET /health HTTP/1.0", host=None),), (200,), closes=True
    )
    yield refused("2.3 1.0 with two Hosts", head(b"GET /health HTTP/1.0", b"Host: b"))
    yield Case(
        "2.3 1.0 with content", (head(line, b"Content-Length: 17") + BODY,), (200,), closes=True
    )
    yield Case("6.1 1.0 has an answer in no chunks",
               (head(line, b"Content-Length: %d" % len(many)) + many,), (200,), closes=True)  # fmt: skip
    yield Case("6.1 1.0 has token vectors in no chunks",
               (head(b"POST /embed_all HTTP/1.0", b"Content-Length: 17") + BODY,), (200,), closes=True)  # fmt: skip
    yield refused("6.1 1.0 with chunks", head(line, CHUNKED) + chunks(BODY))
    yield refused(
        "6.1 1.0 with chunks and a length",
        head(line, CHUNKED, b"Content-Length: 27") + chunks(BODY),
    )
    yield Case("2.3 1.0 and a request after it", (get(version=old) + HIDDEN,), (200,), closes=True)
    yield Case("2.3 1.0, kept alive, and a request after it",
               (get(b"Connection: keep-alive", version=old) + HIDDEN,), (200,), closes=True)  # fmt: skip


def json_bodies() -> Iterator[Case]:
    """Not of the message, but of what is in it: the connection goes on."""
    for body, status in [
        (b"", 400), (b"{", 400), (b"\x00", 400), (b'{"inputs": "\xff"}', 400), (b"[]", 422),
        (rb'{"inputs": "\ud800"}', 400), (b'{"inputs": ""}', 400), (b'{"inputs": 1}', 422),
        (b'{"inputs": ' + b"[" * 10_000, 422), (b'{"inputs": "a", "x": 1}', 422),
    ]:  # fmt: skip
        yield served(f"9.3 after the body {body[:24]!r}", post(body=body), status)
