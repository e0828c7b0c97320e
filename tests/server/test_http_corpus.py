"""Every request has exactly one answer, whatever bytes it is made of."""

import collections
import concurrent.futures
import contextlib
import json
import socket
import struct
import threading
import time

import pytest
import uvicorn

from asgi_calls import HeldEncoder
from http_corpus import Case, all_cases
from http_corpus.messages import BODY, KEY, get, post, served
from http_corpus.wire import Answer, play
from mirror_rt.server import Models, NamedEncoder, ServerConfig, create_app
from mirror_rt.server.config import ListenConfig
from mirror_rt.server.process.uvicorn_server import _uvicorn_config
from server_process import running, until

CASES = all_cases()
SECTIONS = collections.defaultdict(list)
for case in CASES:
    words = case.section.split()
    SECTIONS["RFC 9110, " + words[1] if words[0] == "9110" else "RFC 9112, " + words[0]].append(
        case
    )


@pytest.fixture(scope="module")
def server(bundle):
    limits = ("--header-timeout", 1, "--body-timeout", 1, "--keep-alive", 5, "--max-wait", 60,
              "--max-body-bytes", 1_000_000)  # fmt: skip
    with running(bundle, *limits, MIRROR_RT_SERVE_API_KEYS=KEY) as server:
        yield server


class Neighbour(threading.Thread):
    """A client that asks for a vector over and over, on a connection of its own."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server = server
        self.ended = threading.Event()
        self.answers, self.moments = set(), []

    def run(self):
        connection = self.server.connect()
        headers = {"Authorization": f"Bearer {KEY}"}
        while not self.ended.is_set():
            connection.request("POST", "/embed", BODY, headers)
            response = connection.getresponse()
            self.answers.add((response.status, response.read()))
            self.moments.append(time.monotonic())
        connection.close()


@pytest.fixture(scope="module")
def vector(server) -> bytes:
    """The answer to the body that most cases have."""
    answer = play(served("5 a plain request", post()), server.port)[0]
    assert answer.status == 200
    assert len(json.loads(answer.body)[0]) == 32
    return answer.body


@pytest.fixture(scope="module")
def played(server, vector) -> tuple[dict[str, list[Answer] | Exception], Neighbour, list]:
    """All cases, many at a time, while a neighbour goes on; and from when to when each took."""
    spans = []

    def answers(case: Case) -> list[Answer] | Exception:
        began = time.monotonic()
        try:
            return play(case, server.port)
        except Exception as error:  # noqa: BLE001  # the test of its section shows it
            return error
        finally:
            spans.append((began, time.monotonic()))

    neighbour = Neighbour(server)
    neighbour.start()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        found = list(pool.map(answers, CASES))
    neighbour.ended.set()
    neighbour.join(30)
    return (
        {case.section: answer for case, answer in zip(CASES, found, strict=True)},
        neighbour,
        spans,
    )


def complaint(case: Case, found: list[Answer] | Exception, vector: bytes) -> str | None:
    """What is wrong with the answers to a case, or None."""
    if isinstance(found, Exception):
        return f"{type(found).__name__}: {found}"
    expected = case.statuses if case.closes else (*case.statuses, 200)
    if (statuses := tuple(answer.status for answer in found)) != expected:
        return f"answered {statuses}, expected {expected}"
    if not case.closes and found[-1].headers["x-request-id"] != "last":
        return "the request after it has the answer of another one"
    ids = [answer.headers.get("x-request-id") for answer in found]
    if case.ids is not None and tuple(ids[: len(case.ids)]) != case.ids:
        return f"the answers are those of {ids}"
    for answer in found:
        if answer.status >= 400 and answer.body:
            error = json.loads(answer.body)
            if not all(error.get(name) for name in case.error_fields):
                return f"an error is not said in {case.error_fields}"
    if any(
        a.body[:2] == b"[[" and a.body != vector for a in found if len(a.body) < len(vector) + 9
    ):
        return "the vector is another one"
    return None


@pytest.mark.full
@pytest.mark.parametrize("section", SECTIONS)
def test_every_request_has_one_answer(section, played, vector):
    wrong = [
        f"{case.section}: {why}"
        for case in SECTIONS[section]
        if (why := complaint(case, played[0][case.section], vector)) is not None
    ]
    assert not wrong, f"{len(wrong)} of {len(SECTIONS[section])}\n" + "\n".join(wrong)


@pytest.mark.full
def test_a_neighbour_is_served_meanwhile(played, vector):
    """While each case for which the server waits as long as it does for any: a second and more."""
    _, neighbour, spans = played
    assert neighbour.answers == {(200, vector)}
    waited_for = [(began, ended) for began, ended in spans if ended - began > 1]
    assert waited_for
    for began, ended in waited_for:
        assert any(began < moment < ended for moment in neighbour.moments), (began, ended)


@contextlib.contextmanager
def in_this_process(encoder):
    """An application and the port of a server of it, in a thread."""
    app = create_app(Models([NamedEncoder("tiny", encoder, None, 0)], "tiny"), ServerConfig())
    app.state.registry.wait_until_warm()
    server = uvicorn.Server(_uvicorn_config(app, ListenConfig()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield app, listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)


def test_a_client_that_hangs_up_ends_all_that_it_asked_for(bundle):
    """uvicorn tells only the last request of a connection that nobody waits any more."""
    encoder = HeldEncoder.load(bundle, threads=1)
    with in_this_process(encoder) as (app, port):
        encoder.began.clear()
        encoder.free.clear()
        connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        connection.sendall(post() + get())  # in one packet
        assert encoder.began.wait(60)
        # Closed with a reset: nobody reads, and nobody writes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        until(lambda: b"\nmirror_rt_hang_ups_total 1.0\n" in app.state.registry.metrics.text())
        encoder.free.set()
