"""`mirror_rt.Client` and `AsyncClient`, against `mirror-rt serve` and against servers that fail."""

import asyncio
import copy
import http.server
import json
import pickle
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from mirror_rt import (
    AsyncClient,
    Client,
    ClosedError,
    ConfigError,
    DeadlineError,
    Encoder,
    InvalidTextError,
    OverloadedError,
    ServerError,
    quantize_embeddings,
)
from mirror_rt.client.attempts import _LONGEST_PAUSE
from rounding import NORM_ERROR, RUN_ERROR
from server_process import make_pack, running

TEXTS = [f"the river {'and the road ' * (i % 5)}{i}" for i in range(23)]
KEY = "a-key"


@pytest.fixture(scope="module")
def encoder(bundle):
    with Encoder.load(bundle, threads=1) as encoder:
        yield encoder


@pytest.fixture(scope="module")
def server(bundle, tmp_path_factory):
    """A pack whose languages differ in their prompts, behind a key, with small limits."""
    pack = make_pack(tmp_path_factory.mktemp("pack") / "p", {"en": bundle, "fr": bundle}, "en",
                     prompts={"fr": {"query": "find ", "passage": "read "}})  # fmt: skip
    with running(pack, "--max-items", 5, MIRROR_RT_SERVE_API_KEYS=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(f"http://127.0.0.1:{server.port}", api_key=KEY, timeout=30) as client:
        yield client


def call(client, method, *arguments, **options):
    """A method of either client."""

    async def main():
        of = client._settings.arguments()
        async with AsyncClient(**of, api_key=client._key) as other:
            return await getattr(other, method)(*arguments, **options)

    return asyncio.run(main())


@pytest.mark.parametrize("api", [getattr, None], ids=["blocking", "asyncio"])
def test_encode(api, client, encoder):
    """What the encoder gives, whatever the number of requests."""

    def encode(inputs, method="encode", **options):
        if api is None:
            return call(client, method, inputs, **options)
        return api(client, method)(inputs, **options)

    found = encode(TEXTS)
    assert (found.dtype, found.shape) == (np.float32, (23, 32))
    np.testing.assert_allclose(found, encoder.encode(TEXTS), atol=NORM_ERROR)
    np.testing.assert_allclose(encode("one"), encoder.encode("one"), atol=NORM_ERROR)
    assert encode([]).shape == (0, 32)
    assert encode(iter(TEXTS[:2]), truncate_dim=8).shape == (2, 8)
    raw = encode(TEXTS[:2], normalize_embeddings=False, prompt="a ")
    expected = encoder.encode(TEXTS[:2], normalize_embeddings=False, prompt="a ")
    np.testing.assert_allclose(raw, expected, atol=RUN_ERROR)
    np.testing.assert_array_equal(encode(TEXTS, precision="ubinary"),
                                  quantize_embeddings(found, "ubinary"))  # fmt: skip
    for method, prompt in (("encode", ""), ("encode_query", "find "), ("encode_document", "read ")):
        found, expected = (
            encode("town", method, lang="fr-CA"),
            encoder.encode("town", prompt=prompt),
        )
        np.testing.assert_allclose(found, expected, atol=NORM_ERROR)
        np.testing.assert_allclose(encode("town", method), encoder.encode("town"), atol=NORM_ERROR)


def test_long_texts(client, encoder, caplog):
    long = ["word " * 300, "a"]
    np.testing.assert_allclose(client.encode(long), encoder.encode(long), atol=RUN_ERROR)
    assert "1 texts are longer than the model takes and were cut there" in caplog.text
    with pytest.raises(InvalidTextError, match="item 7: it is longer than 128 tokens"):
        client.encode(TEXTS[:7] + long, on_too_long="error")
    with pytest.raises(InvalidTextError, match="item 7: it is longer than 128 tokens"):
        call(client, "encode", TEXTS[:7] + long, on_too_long=None)  # the server's default


def test_what_the_server_has(client):
    assert client.dimension == 32
    assert client.info()["max_client_batch_size"] == 5
    assert client.models() == call(client, "models") == ["mirror-en", "mirror-fr", "mirror"]
    assert call(client, "info")["model_id"] == "mirror-en"


def test_bad_calls(client):
    """Whatever can be told without the server is told before anything is sent."""
    away = Client("http://127.0.0.1:1", retries=0)
    with pytest.raises(InvalidTextError, match=r"item 1: .* only white space; item 2: expected"):
        away.encode(["a", " ", 3])
    for options, message in [
        ({"errors": "nan"}, "errors: a client has no such option: a server answers for all"),
        ({"device": 1}, "device: a client has no such option: there are normalize_embeddings"),
        ({"truncate_dim": 0}, "truncate_dim must be an integer of at least 1, got 0"),
        ({"precision": "int4"}, "precision must be one of"),
        ({"prompt": 3}, "prompt must be str, got int"),
        ({"prompt": "\ud800"}, "prompt is not valid Unicode"),
    ]:
        with pytest.raises(ConfigError, match=message):
            away.encode("a", **options)
    for options, message in [
        ({"truncate_dim": 33}, r"truncate_dim must be in 1 .. 32, got 33"),
        ({"prompt_name": "x"}, "no prompt is called 'x'"),
        ({"model": "other"}, "no such model: this server has mirror-en, mirror-fr, mirror"),
        ({"lang": "de"}, "this server has no 'de'; it has en, fr"),
    ]:
        with pytest.raises(ConfigError, match=message):
            client.encode("a", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:80"}, "url must begin with http:// or https://, got 'localhost:80'"),
        ({"url": "http://[::"}, "cannot be used"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"retries": -1}, "retries must be an integer of at least 0, got -1"),
        ({"batch_size": 1.5}, "batch_size must be an integer"),
        ({"api_key": "a b"}, "api_key .* must be printable ASCII without spaces"),
        ({"lang": 3}, "lang must be str, got int"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ConfigError, match=message):
        Client(**options)


def test_api_keys(client, server, monkeypatch):
    url = f"http://127.0.0.1:{server.port}"
    with Client(url) as stranger, pytest.raises(ServerError, match="an API key is needed") as found:
        stranger.encode("a")
    assert found.value.status == 401
    assert found.value.request_id in str(found.value)
    assert KEY not in repr(client) + repr(client.__dict__["_settings"])
    stored = pickle.dumps(client)
    assert KEY.encode() not in stored
    monkeypatch.setenv("MIRROR_RT_API_KEY", KEY)
    with pickle.loads(stored) as again:
        assert again.encode("a").shape == (32,)


def test_closed(server):
    client = Client(f"http://127.0.0.1:{server.port}", api_key=KEY)
    assert copy.deepcopy(client) is client
    client.encode("a")
    client.close()
    with pytest.raises(ClosedError, match="this Client is closed"):
        client.encode("a")

    async def main():
        async with AsyncClient(f"http://127.0.0.1:{server.port}", api_key=KEY) as client:
            await client.encode("a")
        with pytest.raises(ClosedError, match="this AsyncClient is closed"):
            await client.encode("a")

    asyncio.run(main())


def test_a_forked_process_has_connections_of_its_own(server, monkeypatch):
    with Client(f"http://127.0.0.1:{server.port}", api_key=KEY) as client:
        client.encode("a")
        parents = client._http
        monkeypatch.setattr("mirror_rt.client.clients.os.getpid", lambda: -1)
        client.encode("a")
        assert client._http is not parents
        assert not parents.is_closed  # they are the parent's to close
        parents.close()


def test_lazy_encoder(client, encoder):
    """What the adapters of LangChain and others call, asynchronous methods included."""
    from mirror_rt.adapters.lazy import LazyEncoder

    lazy = LazyEncoder(client)
    np.testing.assert_allclose(lazy.query("a"), encoder.encode("a"), atol=NORM_ERROR)
    np.testing.assert_allclose(asyncio.run(lazy.aquery("a")), encoder.encode("a"), atol=NORM_ERROR)
    found = asyncio.run(lazy.adocuments(TEXTS))
    np.testing.assert_allclose(found, encoder.encode(TEXTS), atol=NORM_ERROR)
    with pytest.raises(ConfigError, match="cannot be stored"):
        lazy.config()


class Scripted:
    """A server of one's own: `answers` are given in turn, the last one for ever.

    An answer is (status, headers, body), or None to close the connection without one.
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        self.bodies, self.headers, self.clients = [], [], set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.bodies.append(body)
                outer.headers.append(self.headers)
                outer.clients.add(self.client_address)
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, content = answer(body) if callable(answer) else answer
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in ({"content-length": len(content)} | headers).items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET = handle_one  # noqa: N815

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def embedding(*values):
    import base64

    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()


GOOD = (200, {}, {"data": [{"index": 0, "embedding": embedding(1, 2)}]})
BUSY = (429, {"retry-after": "0.3"}, {"error": {"message": "overloaded: later", "code": "x"}})


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, which take no time; the client's clock counts them alone."""
    made = []
    clock = SimpleNamespace(monotonic=lambda: sum(made), time=time.time)
    monkeypatch.setattr("mirror_rt.client.attempts.time", clock)

    async def pause(self, seconds):
        made.append(seconds)

    monkeypatch.setattr(Client, "_sleep", pause)
    monkeypatch.setattr(AsyncClient, "_sleep", pause)
    return made


def test_retries(pauses):
    """As long as the server says, and on a connection that is kept."""
    with Scripted(BUSY, (503, {}, b"<html>"), GOOD) as server, Client(server.url) as client:
        np.testing.assert_array_equal(client.encode("a"), [1, 2])
        np.testing.assert_array_equal(client.encode("a"), [1, 2])
        assert len(server.bodies) == 4
        assert 0.3 <= pauses[0] <= 0.3 * 1.25
        assert 0.1 <= pauses[1] <= 0.2  # of its own
        assert len(server.clients) == 1
        left = [float(headers["x-request-timeout"]) for headers in server.headers]
        most = [60, left[0] - pauses[0], left[1] - pauses[1]]
        assert all(each <= limit + 0.001 for each, limit in zip(left, most, strict=False))  # in ms
    with Scripted(None, None, GOOD) as server, Client(server.url) as client:
        np.testing.assert_array_equal(client.encode("a"), [1, 2])
        assert len(server.bodies) == 3
    with Scripted(BUSY, GOOD) as server, Client(server.url) as client:
        np.testing.assert_array_equal(call(client, "encode", "a"), [1, 2])


def test_a_server_that_works_is_waited_for_as_long_as_there_is_time(pauses, monkeypatch):
    longest = SimpleNamespace(uniform=lambda _, most: most)  # so that 3 s are left for the last try
    monkeypatch.setattr("mirror_rt.client.attempts.random", longest)
    with Scripted(BUSY) as server, Client(server.url, retries=1, timeout=30) as client:
        with pytest.raises(OverloadedError, match=r"says 'later'; try again in about 0\.3 s"):
            client.encode("a")
        assert 30 - _LONGEST_PAUSE <= sum(pauses) < 30  # one more would be too long
        assert len(server.bodies) == len(pauses) + 1


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (BUSY, OverloadedError, "says 'later'"),
        ((503, {}, b""), ServerError, "the server answers 503: without saying why"),
        (None, ServerError, "cannot be reached: "),
    ],
)
@pytest.mark.parametrize("retries", [0, 1])
def test_tries_are_as_many_as_told(answer, error, message, retries, pauses):
    if answer is BUSY and retries:
        return  # above
    with Scripted(answer) as server, Client(server.url, retries=retries) as client:
        with pytest.raises(error, match=message):
            client.encode("a")
        assert len(server.bodies) == retries + 1


def test_nothing_is_waited_for_that_comes_after_ones_own_time(pauses):
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))
    for wait in ("600", date):
        later = (429, {"retry-after": wait}, BUSY[2])
        with (
            Scripted(later) as server,
            Client(server.url, timeout=300) as client,
            pytest.raises(OverloadedError),
        ):
            client.encode("a")
    assert pauses == []


def test_no_server():
    client = Client("http://127.0.0.1:1", retries=2)
    with pytest.raises(ServerError, match=r"127.0.0.1:1 cannot be reached: .*refused") as found:
        client.encode("a")
    assert found.value.status is None
    with pytest.raises(ServerError, match="cannot be reached"):
        call(client, "encode", "a")


def test_time_is_over():
    silent = threading.Event()

    def answer(_):
        silent.wait(60)
        return GOOD

    with Scripted(answer) as server, Client(server.url, timeout=0.2) as client:
        try:
            for encode in (client.encode, lambda text: call(client, "encode", text)):
                with pytest.raises(DeadlineError, match=r"no vector within 0\.2 s"):
                    encode("a")
            server.answers = [(408, {}, {"error": {"message": "late"}})]
            with pytest.raises(DeadlineError):
                client.encode("a")
        finally:
            silent.set()


@pytest.mark.parametrize(
    "content",
    [
        b"<html>", [], {"data": []}, {"data": [{"index": 1, "embedding": embedding(1)}]},
        {"data": [{"index": 0, "embedding": "%"}]}, {"data": [{"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": "AAA="}]},
    ],
    ids=str,
)  # fmt: skip
def test_something_else_answers(content):
    with Scripted((200, {}, content)) as server, Client(server.url) as client:
        with pytest.raises(ServerError, match=r"is it mirror-rt serve\?"):
            client.encode("a")
        with pytest.raises(ServerError, match=r"is it mirror-rt serve\?"):
            client.dimension  # noqa: B018
        assert len(server.bodies) == 2
        if content != {"data": []}:  # a server without a model, for all that it says
            with pytest.raises(ServerError, match=r"is it mirror-rt serve\?"):
                client.models()


def test_other_statuses():
    cases = [
        (424, {"error": {"message": "the model failed"}}, ServerError, "424: the model failed"),
        (413, {"error": "the body has more than 9 bytes"}, ConfigError, "a smaller batch_size"),
        (400, {"error": {"message": "item 0: long", "code": "context_length_exceeded"}},
         InvalidTextError, "item 0: long"),
        (301, b"", ServerError, "301: without saying why"),
        (422, {"error": {"message": "item 0: bad (and 2 more)"}}, InvalidTextError,
         r"item 0: bad \(and 2 more\)"),
    ]  # fmt: skip
    for status, content, error, message in cases:
        with Scripted((status, {}, content)) as server, Client(server.url) as client:
            with pytest.raises(error, match=message):
                client.encode("a")
            assert len(server.bodies) == 1


def _counting(body):
    """Vectors that say which text they are of."""
    if not body:
        return 200, {}, {"dimension": 1, "max_client_batch_size": 4}
    texts = json.loads(body)["input"]
    rows = [{"index": i, "embedding": embedding(int(text))} for i, text in enumerate(texts)]
    return 200, {}, {"data": rows[::-1]}


@pytest.mark.parametrize("blocking", [True, False])
def test_pieces(blocking):
    """In order, whichever is answered first; a few at a time; none larger than is accepted."""
    with Scripted(_counting) as server, Client(server.url, concurrency=2) as client:
        texts = [str(i) for i in range(38)]
        found = client.encode(texts) if blocking else call(client, "encode", texts)
        np.testing.assert_array_equal(found[:, 0], np.arange(38))
        assert sorted(len(json.loads(body)["input"]) for body in server.bodies[1:]) == [2, *[4] * 9]
        assert len(server.clients) <= 3


def test_large_texts_are_pieces_of_their_own():
    from mirror_rt.client.request import EncodeRequest

    with Client() as client:
        texts = ["a" * 600_000, "b" * 600_000, "c", "d" * 2_000_000]
        request = EncodeRequest.make(texts, {}, client._settings, None)
        assert request.pieces(256) == [range(1), range(1, 3), range(3, 4)]


def test_a_piece_that_fails_ends_the_call():
    def answer(body):
        if body and b'"8"' in body:
            return 422, {}, {"error": {"message": "item 3: no such thing"}}
        return _counting(body)

    for run in (Client.encode, lambda client, texts: call(client, "encode", texts)):
        with Scripted(answer) as server, Client(server.url, concurrency=1, batch_size=5) as client:
            with pytest.raises(InvalidTextError, match="item 11: no such thing") as found:
                run(client, [str(i) for i in range(400)])
            assert found.value.items == [(11, "no such thing")]
            assert len(server.bodies) < 20
