"""Cases about the end of a body: RFC 9112, sections 6 and 7."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from http_corpus.messages import (
    AUTHORIZED,
    BODY,
    CHUNKED,
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


def lengths() -> Iterator[Case]:
    size = len(BODY)
    for value in (b"%d", b" %d ", b"\t%d", b"0%d", b"0000000%d"):
        field = b"Content-Length:" + value % size
        yield served(f"6.2 {field!r}", post(field, length=False))
    yield served("6.3 a byte order mark (RFC 8259, 8.1)", post(body=b"\xef\xbb\xbf" + BODY))
    for value in [
        b"-1", b"+17", b"-0", b"0x11", b"1e1", b"17.0", b"1 7", b"17;", b"17,17", b"17, 18", b"17,",
        b",17", b"", b" ", b"abc", b"17a", b"a17", b'"17"', b"1_7", b"\xb2", b"1\xa07", b"None",
        b"18446744073709551616", b"99999999999999999999", b"9" * 4300, b"0" * 4300 + b"17",
        b"0" * 5000,
        b"1" * 30000, b"17\x00", b"17\x0b", b"\x0c17",
    ]:  # fmt: skip
        name = value if len(value) < 40 else value[:3] + b"... of %d" % len(value)
        yield refused(
            f"6.2 Content-Length {name!r}", post(b"Content-Length: " + value, length=False)
        )
    yield refused("6.3 two equal lengths", post(b"Content-Length: %d" % size))
    yield refused("6.3 two lengths", post(b"Content-Length: 3"))
    yield refused(
        "6.3 two lengths, the first of which is 0",
        head(b"POST /embed HTTP/1.1", b"Content-Length: 0", b"Content-Length: 17") + BODY,
    )
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
    yield served(
        "6.3 content with DELETE",
        head(b"DELETE /embed HTTP/1.1", b"Content-Length: %d" % len(HIDDEN)) + HIDDEN,
        405,
    )
    yield served(
        "6.3 content of a path that is not there", post(body=HIDDEN, path=b"/nowhere"), 404
    )
    yield refused(
        "6.3 a length below the body's", post(b"Content-Length: 3", length=False), 400, 400
    )
    yield refused(
        "9110 8.6 a body that is too large is not waited for",
        head(b"POST /embed HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 999999999999"),
        413,
    )
    yield refused(
        "9110 8.6 the largest length that is read",
        head(b"POST /embed HTTP/1.1", b"Expect: 100-continue", b"Content-Length: " + b"9" * 19),
        413,
    )


def codings() -> Iterator[Case]:
    content = chunks(BODY)
    for coding in (b"Transfer-Encoding: Chunked", b"transfer-encoding: CHUNKED",
                   b"TRANSFER-ENCODING:chunked", b"Transfer-Encoding: \t chunked"):  # fmt: skip
        yield served(f"7 {coding!r}", chunked(content, coding=coding))
    for value in (b"gzip, chunked", b"deflate, chunked", b"compress,chunked", b"br, chunked",
                  b"identity, chunked", b"x-gzip, chunked", b"gzip, deflate, chunked",
                  b"foo;a=b, chunked", b"gzip,chunked"):  # fmt: skip
        yield refused(f"7 {value!r}", chunked(content, coding=b"Transfer-Encoding: " + value), 501)
    yield refused(
        "7 two fields, gzip and chunked",
        chunked(content, coding=b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"),
        501,
    )
    for value in (b"gzip", b"identity", b"chunked, gzip", b"chunked, identity", b"chunked, chunked",
                  b"", b" ", b"chunked \t", b"chunked;q=1", b"xchunked", b"chunkedx",
                  b'"chunked"', b"chunk", b"cow",
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
        yield refused(
            f"6.1 {field!r}, then chunked", chunked(content, coding=field + END + CHUNKED)
        )
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
        b"\x0011\r\n", b"11\x00\r\n", b"ffffffffffffffffff\r\n", b"10000000000000011\r\n",
        b"\xb2\r\n",
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
    yield refused("7.1.1 an extension without end", chunked(endless), 431)


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
    yield served("7.1.2 a request behind trailers", two, 200, 200)
    unnamed = head(b"POST /embed HTTP/1.1", CHUNKED)
    without_key = unnamed.replace(AUTHORIZED + END, b"")
    yield refused(
        "7.1.2 the key comes as a trailer",
        without_key + chunks(BODY, trailer=AUTHORIZED + END),
        401,
    )
    for trailer in [
        b"Connection: close", b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 3",
        b"Connection: Upgrade\r\nUpgrade: h2c", b"Transfer-Encoding: chunked",
        b"CONTENT-LENGTH: 17",
        b"Transfer-Encoding: gzip", b"Proxy-Connection: close", b"X: 1\r\nConnection: keep-alive",
    ]:  # fmt: skip
        yield refused(
            f"9110 6.5.1 trailer {trailer!r}", chunked(chunks(BODY, trailer=trailer + END)) + HIDDEN
        )
    for trailer in (b"X-A : 1", b"X-A", b" X-A: 1", b"X-A: 1\r\n 2", b"X-A: 1\nX-B: 2", b"X\x00: 1",
                    b"X-A: \x00", b": 1", b"X-A: 1\rX"):  # fmt: skip
        yield refused(
            f"7.1.2 trailer {trailer!r}", chunked(chunks(BODY, trailer=trailer + END)) + HIDDEN
        )
    yield refused(
        "7.1.2 trailers too large",
        chunked(chunks(BODY, trailer=b"X-A: " + b"a" * 2 * LIMIT + END)),
        431,
    )
    yield refused(
        "7.1.2 trailers too many", chunked(chunks(BODY, trailer=b"X-A: 1\r\n" * 9000)), 431
    )
    endless = b"11\r\n" + BODY + b"\r\n0\r\nX-A: " + b"a" * 4 * LIMIT
    yield refused("7.1.2 a trailer without end", chunked(endless), 431)
    yield refused("7.1.2 a request in a trailer", chunked(chunks(BODY)[:-2] + HIDDEN), 400)


def json_bodies() -> Iterator[Case]:
    """Yield bodies that are wrong only in their content, so that the connection stays open."""
    for body, status in [
        (b"", 400), (b"{", 400), (b"\x00", 400), (b'{"inputs": "\xff"}', 400), (b"[]", 422),
        (rb'{"inputs": "\ud800"}', 400), (b'{"inputs": ""}', 400), (b'{"inputs": 1}', 422),
        (b'{"inputs": ' + b"[" * 10_000, 422), (b'{"inputs": "a", "x": 1}', 422),
        # Of two faults the first that is met is said: neither field takes a text.
        (b'{"truncate": "\xff"}', 422), (rb'{"x": "\ud800", "inputs": "a"}', 422),
    ]:  # fmt: skip
        yield served(f"9.3 after the body {body[:24]!r}", post(body=body), status)
    for path, name, fields in [
        (b"/rerank", b'"query": "a", "texts"', ("error", "error_type")),
        (b"/v1/rerank", b'"query": "a", "documents"', ("message", "detail")),
        (b"/v2/rerank", b'"query": "a", "documents"', ("message", "detail")),
        (b"/predict", b'"inputs"', ("error", "error_type")),
    ]:
        for body, status in [
            (b"", 400), (b"[]", 422), (b"{%s: " % name, 400), (b"{%s: 1}" % name, 422),
            (b'{%s: ["\xff"]}' % name, 400), (rb'{%s: ["\ud800"]}' % name, 400),
            (b"{%s: " % name + b"[" * 10_000, 422), (rb'{"x": "\ud800", %s: ["a"]}' % name, 422),
            (b'{%s: ["a", "b"]}' % name, 422),  # the model gives vectors
        ]:  # fmt: skip
            section = f"9.3 {path.decode()} after the body {body[:48]!r}"
            yield replace(served(section, post(body=body, path=path), status), error_fields=fields)
