"""Cases about request lines, targets and header fields: RFC 9112, sections 2, 3, 5; RFC 9110."""

from __future__ import annotations

from collections.abc import Iterator

from http_corpus.messages import (
    ANSWER,
    AUTHORIZED,
    BODY,
    END,
    HIDDEN,
    LIMIT,
    Case,
    chunked,
    chunks,
    get,
    head,
    post,
    refused,
    served,
)


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
    yield refused(
        "2.2 a line break without CR after the request line",
        get().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
    )
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
        yield refused(f"3.2.3 CONNECT {target!r}", sent, 405)


def hosts() -> Iterator[Case]:
    line = b"GET /health HTTP/1.1"
    for host in (b"", b"a", b"A.Example", b"a:8080", b"127.0.0.1", b"[::1]:80", b"[::1]", b"a:",
                 b"a_b.example", b"xn--nxasmq6b", b"a%20b"):  # fmt: skip
        yield served(f"3.2 Host {host!r}", head(line, host=b"Host: " + host))
    for host in (b"a b", b"a/b", b"a@b", b"http://a", b"a:b", b"a?b", b"a#b", b"[::1", b"\xe9",
                 b'"a"', b"a\\b", b"<a>"):  # fmt: skip
        yield refused(f"3.2 Host {host!r}", head(line, host=b"Host: " + host))
    yield served("3.2 Host with a comma, which a name may have", head(line, host=b"Host: a,b"))
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
        ("a value of colons", b"X-A: ::::"), ("a name of all token characters",
        b"!#$%&'*+-.^_`|~1a: x"),
        ("the same name twice", b"X-A: 1\r\nX-A: 2"), ("capital letters",
        b"CONTENT-TYPE: text/plain"),
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
    yield refused("9110 5.4 a header without end", endless, 431)
    endless = b"GET /" + b"a" * 4 * LIMIT
    yield refused("9110 4.1 a target without end", endless, 431)


def expectations() -> Iterator[Case]:
    wants = b"Expect: 100-continue"
    begin = head(b"POST /embed HTTP/1.1", wants, b"Content-Length: %d" % len(BODY))
    yield served("9110 10.1.1 in one piece", begin + BODY)
    yield Case("9110 10.1.1 after a while", (begin, 0.05, BODY), (200,))
    yield Case("9110 10.1.1 twice", (begin, 0.05, BODY + begin, 0.05, BODY), (200, 200))
    yield Case(
        "9110 10.1.1 in capitals",
        (begin.replace(wants, b"EXPECT: 100-Continue"), 0.05, BODY),
        (200,),
    )
    yield served("9110 10.1.1 without content", get(wants))
    yield Case("9110 10.1.1 chunked", (chunked(b"", wants), 0.03, chunks(BODY)), (200,))
    nowhere = begin.replace(b"/embed", b"/nowhere", 1)
    yield refused("9110 10.1.1 refused, and no body comes", nowhere, 404)
    yield Case(
        "9110 10.1.1 refused, and the body comes",
        (nowhere, ANSWER, HIDDEN[:17]),
        (404,),
        closes=True,
    )
    yield Case(
        "9110 10.1.1 refused, and the next request comes",
        (nowhere, ANSWER, get()),
        (404,),
        closes=True,
    )
    unread = head(b"GET /health HTTP/1.1", wants, b"Content-Length: 17")
    yield Case("9110 10.1.1 never asked for", (unread, ANSWER, get()), (200,), closes=True)
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
    for value in (b"gzip", b"GZIP", b"x-gzip", b"deflate"):
        sent = post(b"Content-Encoding: " + value)  # its body is none of these
        yield refused(f"9110 8.4.1.3 {value!r}", sent)
    for value in (b"br", b"identity, gzip", b"zstd", b"x"):
        yield refused(f"9110 8.4 {value!r}", post(b"Content-Encoding: " + value), 415)
