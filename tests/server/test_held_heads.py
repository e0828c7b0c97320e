"""The head of an answer goes out with its body, and never waits for one that is still computed."""

from __future__ import annotations

import asyncio

from mirror_rt.server.http.ending import LingeringTransport


class Sink(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def made() -> tuple[LingeringTransport, Sink]:
    sink = Sink()
    return LingeringTransport(sink, asyncio.get_running_loop(), 1.0), sink


async def written_with_its_body() -> list[bytes]:
    transport, sink = made()
    for body in (b"body", b""):
        transport.hold()
        transport.write(b"head ")
        transport.write(body)
        transport.write(b"more")
    return sink.written


async def written_without_a_body() -> list[bytes]:
    transport, sink = made()
    transport.hold()
    transport.write(b"head")
    assert sink.written == []
    await asyncio.sleep(0)
    transport.write(b"body")
    return sink.written


async def written_before_the_end() -> list[bytes]:
    transport, sink = made()
    transport.hold()
    transport.write(b"head")
    transport.close()
    return sink.written


def test_a_head_and_its_body_are_one_packet():
    assert asyncio.run(written_with_its_body()) == [b"head body", b"more", b"head ", b"more"]


def test_a_head_does_not_wait_for_a_body_that_is_not_there():
    assert asyncio.run(written_without_a_body()) == [b"head", b"body"]


def test_a_head_is_sent_before_the_connection_ends():
    assert asyncio.run(written_before_the_end()) == [b"head"]
