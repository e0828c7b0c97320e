"""The server as its clients see it, in a process of its own."""

import base64
import concurrent.futures
import contextlib
import gzip
import json
import signal
import socket
import zlib

import numpy as np
import pytest

from mirror_rt.vectors.search import cosine_similarity
from rounding import ANY_BATCH, RUN_ERROR
from server_process import make_pack, read_all, running, until
from tiny_models import SENTENCES

UNNORMALISED = RUN_ERROR * 32**0.5  # of means of hidden states, whose norm is sqrt(32)


@pytest.fixture(scope="module")
def server(bundle):
    limits = ("--header-timeout", 1, "--body-timeout", 1, "--keep-alive", 3)
    with running(bundle, "--model-name", "tiny", "--max-body-bytes", 1_000_000, *limits) as server:
        yield server


def vectors(answer):
    return np.array([row["embedding"] for row in answer["data"]], dtype=np.float32)


def test_openai_forms_of_input_and_output(server, encoder):
    ids = encoder.tokenize(SENTENCES[:2])
    expected = encoder.encode(SENTENCES[:2])
    for given, rows in ((SENTENCES[0], 1), (SENTENCES[:2], 2), (ids, 2), (ids[0], 1)):
        status, answer = server.post("/v1/embeddings", {"input": given})
        assert status == 200
        np.testing.assert_allclose(vectors(answer), expected[:rows], atol=ANY_BATCH)
    body = {"input": SENTENCES[0], "encoding_format": "base64", "dimensions": 8, "user": "me"}
    row = server.post("/v1/embeddings", body)[1]["data"][0]["embedding"]
    np.testing.assert_allclose(
        np.frombuffer(base64.b64decode(row), "<f4"),
        encoder.encode(SENTENCES[0], truncate_dim=8),
        atol=ANY_BATCH,
    )


def test_a_large_request_keeps_its_order(server, encoder):
    """Cut into pieces by length, and put together again; streamed, in both protocols."""
    texts = [f"{'word ' * (i * 7 % 23)}{i}" for i in range(300)]
    expected = encoder.encode(texts)
    status, answer = server.post("/v1/embeddings", {"input": texts})
    assert status == 200
    np.testing.assert_allclose(vectors(answer), expected, atol=ANY_BATCH)
    status, answer = server.post("/embed", {"inputs": texts})
    assert status == 200
    np.testing.assert_allclose(np.array(answer), expected, atol=ANY_BATCH)
    texts[207] = "word " * 500
    status, answer = server.post("/v1/embeddings", {"input": texts})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["message"].startswith("item 207: it is longer than 128 tokens")


def test_text_embeddings_inference(server, encoder):
    texts = SENTENCES[:3]
    status, answer = server.post("/embed", {"inputs": texts, "normalize": False})
    assert status == 200
    np.testing.assert_allclose(
        np.array(answer), encoder.encode(texts, normalize_embeddings=False), atol=UNNORMALISED
    )
    inputs = {"source_sentence": texts[0], "sentences": texts[1:]}
    status, answer = server.post("/similarity", {"inputs": inputs})
    expected = cosine_similarity(encoder.encode(texts[:1]), encoder.encode(texts[1:]))[0]
    np.testing.assert_allclose(answer, expected, atol=ANY_BATCH)
    status, answer = server.get("/info")
    assert (answer["model_id"], answer["max_input_length"]) == ("tiny", 128)
    assert answer["served_model_name"] == "tiny"
    assert answer["model_type"] == {"embedding": {"pooling": "mean"}}


def test_token_vectors(server, encoder):
    """Mean pooling of what /embed_all gives is what /embed gives."""
    texts = [SENTENCES[1], "word", SENTENCES[3]]
    status, answer = server.post("/embed_all", {"inputs": texts})
    assert status == 200
    assert [len(rows) for rows in answer] == [len(ids) for ids in encoder.tokenize(texts)]
    pooled = np.array([np.mean(rows, axis=0) for rows in answer])
    expected = encoder.encode(texts, normalize_embeddings=False)
    np.testing.assert_allclose(pooled, expected, atol=UNNORMALISED)


def test_tokenize(server, encoder):
    text = "word " * 200 + "river"
    status, answer = server.post("/tokenize", {"inputs": [SENTENCES[0], text]})
    assert status == 200
    assert [piece["id"] for piece in answer[0]] == encoder.tokenize(SENTENCES[0])[0]
    for piece in answer[1][1:-1]:
        assert piece["text"] == text[piece["start"] : piece["stop"]]
    assert (answer[1][0]["special"], answer[1][-1]["special"]) == (True, True)
    assert sum(piece["special"] for piece in answer[1]) == 2  # though it is two windows
    bare = server.post("/tokenize", {"inputs": text, "add_special_tokens": False})[1]
    assert bare[0] == answer[1][1:-1]


def test_long_texts(server, encoder):
    long = "word " * 300
    assert server.post("/embed", {"inputs": long, "truncate": False})[0] == 413
    answer = server.post("/embed", {"inputs": long, "truncate": True})[1]
    np.testing.assert_allclose(answer[0], encoder.encode(long), atol=ANY_BATCH)
    answer = server.post("/v1/embeddings", {"input": long, "on_too_long": "chunk"})[1]
    np.testing.assert_allclose(vectors(answer)[0], encoder.encode(long, on_too_long="chunk"),
                               atol=ANY_BATCH)  # fmt: skip
    connection = server.connect()
    connection.request("POST", "/embed", json.dumps({"inputs": [long, "a"], "truncate": True}))
    assert connection.getresponse().getheader("x-truncated-items") == "1"
    connection.close()


def test_the_end_at_which_texts_are_cut(server, encoder):
    long = " ".join(SENTENCES * 200)
    expected = encoder.encode([long], on_too_long="truncate-left")
    assert np.abs(expected - encoder.encode([long])).max() > 1e-3
    body = {"inputs": long, "truncate": True, "truncation_direction": "left"}
    np.testing.assert_allclose(server.post("/embed", body)[1], expected, atol=ANY_BATCH)
    answer = server.post("/v1/embeddings", {"input": long, "on_too_long": "truncate-left"})[1]
    np.testing.assert_allclose(vectors(answer), expected, atol=ANY_BATCH)
    assert server.post("/embed", body | {"truncate": False})[0] == 413


def test_huggingface_client(server, encoder, monkeypatch):
    from huggingface_hub import InferenceClient, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # this is no hub
    client = InferenceClient(f"http://127.0.0.1:{server.port}")
    found = client.feature_extraction(SENTENCES[0], normalize=True, truncate=True)
    np.testing.assert_allclose(found[0], encoder.encode(SENTENCES[0]), atol=ANY_BATCH)
    options = {"truncation_direction": "right", "encoding_format": "float", "dimensions": 8}
    assert client.feature_extraction(SENTENCES[0], **options).shape == (1, 8)
    cosines = client.sentence_similarity(SENTENCES[0], other_sentences=SENTENCES[1:3])
    others = encoder.encode(SENTENCES[1:3])
    expected = cosine_similarity(encoder.encode(SENTENCES[:1]), others)[0]
    np.testing.assert_allclose(cosines, expected, atol=ANY_BATCH)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
        ({"inputs": "a", "encoding_format": "base64"}, "encoding_format"),
        ({"inputs": ["a", [5]]}, "not both"),
        ({"inputs": {"source_sentence": "a"}}, "sentences"),
        ({"parameters": {}, "inputs": {"source_sentence": "a", "sentences": 1}}, "sentences"),
        ({"inputs": 1}, "inputs"),
    ],
)
def test_what_the_root_does_not_take_is_named(server, body, named):
    status, answer = server.post("/", body)
    assert status == 422
    assert named in answer["error"]


def test_decode_gives_the_texts_of_tokens(server, encoder):
    ids = encoder.tokenize(SENTENCES[:2])
    status, answer = server.post("/decode", {"ids": ids})
    assert (status, encoder.tokenize(answer)) == (200, ids)
    assert server.post("/decode", {"ids": ids[0]})[1] == answer[:1]
    whole = server.post("/decode", {"ids": ids[0], "skip_special_tokens": False})[1]
    assert whole[0].startswith("[CLS]")
    for bad in ([], [[]], ["a"], [-1], [[1], 2]):
        status, answer = server.post("/decode", {"ids": bad})
        assert status in (400, 422)
        assert "ids" in answer["error"]
    assert server.post("/decode", {"ids": [5] * 200})[0] == 413


BAD = [
    (400, b""), (400, b"{"), (400, b'{"input": "\xff"}'), (400, rb'{"input": "\ud800"}'),
    (422, b'{"input": ' + b"[" * 100_000), (422, b'{"x": ' + b"[" * 100_000), (400, b"\x00"),
    (400, b'{"input": ""}'),
    (400, b'{"input": " \\n"}'), (400, b'{"input": []}'), (400, b'{"input": [[]]}'),
    (400, b'{"input": ["a", ""]}'), (422, b"[]"), (422, b"null"), (422, b"{}"),
    (422, b'{"input": 1}'), (422, b'{"input": null}'), (422, b'{"input": {"a": 1}}'),
    (422, b'{"input": ["a", 1]}'), (422, b'{"input": [[1], "a"]}'), (422, b'{"input": [-1]}'),
    (422, b'{"input": [999999]}'), (422, b'{"input": [1e400]}'), (422, b'{"input": [null]}'),
    (422, b'{"input": "a", "dimensions": 33}'), (422, b'{"input": "a", "dimensions": -1}'),
    (422, b'{"input": "a", "encoding_format": "hex"}'), (422, b'{"input": "a", "dimension": 8}'),
    (422, b'{"input": "a", "prompt_name": "x"}'), (422, b'{"input": "a", "lang": "fr"}'),
    (422, b'{"input": "a", "lang": "a' + b"-" * 900_000 + b'"}'),
    (422, b'{"input": "a", "prompt_name": "' + b"x" * 900_000 + b'"}'),
    (404, b'{"input": "a", "model": "text-embedding-3-small"}'),
    (413, b'{"input": [' + b'"a",' * 100_000 + b'"a"]}'),
    (400, b'{"input": [' + b"5," * 200 + b"5]}"), (413, b" " * 1_000_001),
]  # fmt: skip


def check_bad(server, status, body):
    found, answer = server.post("/v1/embeddings", body)
    assert found == status, (body[:100], answer)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in answer["error"]["message"]
    status = 413 if answer["error"]["code"] == "context_length_exceeded" else status
    found, answer = server.post("/embed", body.replace(b'"input"', b'"inputs"'))
    assert found == status or b"encoding_format" in body, (body[:100], answer)
    assert set(answer) == {"error", "error_type"}


def test_bad_bodies_are_refused_and_harm_no_neighbour(server, encoder):
    expected = encoder.encode("word")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        hostile = [pool.submit(check_bad, server, *bad) for bad in BAD]
        while not all(future.done() for future in hostile):
            status, answer = server.post("/embed", {"inputs": "word"})
            assert status == 200
            np.testing.assert_allclose(answer[0], expected, atol=ANY_BATCH)
    for future in hostile:
        future.result()


def test_nul_is_a_character(server, encoder):
    status, answer = server.post("/embed", {"inputs": "a\0b"})
    assert status == 200
    np.testing.assert_allclose(answer[0], encoder.encode("a\0b"), atol=ANY_BATCH)


def test_other_paths_and_methods(server):
    assert server.get("/nowhere")[0] == 404
    assert server.get("/v1/nowhere")[1]["error"]["code"] == "not_found"
    assert server.get("/v1/embeddings")[0] == 405
    with contextlib.closing(server.connect()) as connection:
        connection.request("DELETE", "/")
        response = connection.getresponse()
        assert response.status == 405
        assert set(response.getheader("allow").split(", ")) == {"GET", "HEAD", "POST"}
    status, answer = server.get(f"/info?lang={'a-' * 10_000}")
    assert status == 422
    assert answer["error"].startswith("lang: 'a-a-")
    assert len(answer["error"]) < 200
    assert server.get("/v1/models")[1]["data"][0]["id"] == "tiny"
    assert server.get("/v1/models/tiny")[1]["id"] == "tiny"
    assert server.get("/v1/models/other")[0] == 404
    assert server.get("/health") == (200, {"status": "live"})
    assert set(server.get("/openapi.json")[1]["paths"]) >= {"/v1/embeddings", "/embed", "/ready"}


def test_hostile_connections_harm_nobody(server, encoder):
    """Each gets its status or is closed, while a neighbour gets the right vectors throughout."""
    head = b"POST /embed HTTP/1.1\r\nHost: a\r\n"
    body = b'{"inputs": "word"}'
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    expected = encoder.encode("word")
    with server.socket() as silent, server.socket() as slow_head, server.socket() as slow_body:
        slow_head.sendall(b"POST /embed HTTP/1.1\r\nHo")
        slow_body.sendall(head + b"Content-Length: 100\r\n\r\n{")
        with server.socket() as half:
            half.sendall(request)
            half.shutdown(socket.SHUT_WR)
            assert b" 200 OK" in read_all(half)
        with server.socket() as pipelined:
            last = request.replace(b"Host: a", b"Host: a\r\nConnection: close")
            pipelined.sendall(request * 3 + last)
            assert read_all(pipelined).count(b" 200 OK") == 4
        assert b" 400 " in server.send(b"\x16\x03\x01 what is this\r\n\r\n")
        long = b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000
        assert b" 431 " in server.send(long + b"\r\n\r\n")
        assert b" 415 " in server.send(head + b"Content-Encoding: br\r\n\r\n")
        huge = head + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"
        assert b" 413 " in server.send(huge)
        for two_lengths in (b"Content-Length: 1\r\nContent-Length: 2", b"Content-Length: -1",
                            b"Content-Length: 3\r\nTransfer-Encoding: chunked"):  # fmt: skip
            assert b" 400 " in server.send(head + two_lengths + b"\r\n\r\n0\r\n\r\n")
        assert b" 400 " in server.send(b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert server.get("/%ff%00")[0] == 404
        np.testing.assert_allclose(server.post("/embed", {"inputs": "word"})[1][0], expected,
                                   atol=ANY_BATCH)  # fmt: skip
        assert b" 408 " in read_all(slow_body)
        assert b" 408 " in read_all(slow_head)
        assert read_all(silent) == b""  # closed as one that is idle
    np.testing.assert_allclose(
        server.post("/embed", {"inputs": "word"})[1][0], expected, atol=ANY_BATCH
    )


def test_a_body_too_large_by_far(server):
    """Sent whole before the answer is read, as most clients do; with a length, and without."""
    assert server.post("/embed", b" " * 100_000_000)[0] == 413
    with contextlib.closing(server.connect()) as connection:
        pieces = (b" " * 1_000_000 for _ in range(100))
        connection.request("POST", "/embed", pieces, encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})  # fmt: skip
        assert connection.getresponse().status == 413


def test_bodies_of_gzip(server, encoder):
    """Of one member and of several, in one piece and in many; never more than the limit."""
    expected, pieces = encoder.encode("word"), (b'{"inputs": ', b'"word"}')
    body = b"".join(map(gzip.compress, pieces))
    zipped = {"Content-Encoding": "gzip"}
    chunked = (b"1\r\n%c\r\n" % byte for byte in body)
    head = b"POST /embed HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
    answer = server.send(
        head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunked) + b"0\r\n\r\n"
    )
    for vectors in (
        server.post("/embed", body, zipped)[1],
        json.loads(answer.split(b"\r\n\r\n")[1]),
        server.post("/embed", zlib.compress(b"".join(pieces)), {"Content-Encoding": "deflate"})[1],
    ):
        np.testing.assert_allclose(vectors[0], expected, atol=ANY_BATCH)
    empty = gzip.compress(b"")
    bombs = (gzip.compress(b" " * 10_000_000), empty * 60_000, zlib.compress(b" " * 10_000_000))
    for bad in (*bombs, b"{}", body[:-1], body + b"no", b"", empty):
        status = 413 if bad in bombs else 400
        assert server.post("/embed", bad, zipped)[0] == status, bad[:20]


def test_request_ids_and_the_log(server):
    connection = server.connect()
    secret = "a text that nobody else has"
    connection.request("POST", "/embed?q=" + "secret", json.dumps({"inputs": secret}),
                       {"X-Request-Id": "id-1", "Authorization": "Bearer secret"})  # fmt: skip
    assert connection.getresponse().getheader("x-request-id") == "id-1"
    connection.close()
    until(lambda: any("id-1" in line for line in server.lines))
    line = next(json.loads(line) for line in server.lines if "id-1" in line)
    assert (line["route"], line["status"], line["texts"]) == ("/embed", 200, 1)
    assert not [line for line in server.lines if "secret" in line or secret in line]


def test_metrics(server):
    server.post("/embed", {"inputs": "a"})
    text = server.get("/metrics")[1].decode()
    for name in ("queue_seconds", "batch_texts", "text_tokens", "batch_padding_ratio",
                 "execution_seconds"):  # fmt: skip
        assert f'mirror_rt_{name}_count{{model="tiny",status="ok"}}' in text
    assert "\nprocess_resident_memory_bytes " in text
    assert 'mirror_rt_request_seconds_count{model="tiny",route="/embed",status="200"}' in text


@pytest.mark.full
def test_a_pack_with_keys(bundle, tmp_path_factory, tmp_path):
    """Languages by model name and by `lang`; keys from both sources, read again when changed."""
    pack = make_pack(tmp_path_factory.mktemp("pack") / "p", {"fr": bundle, "en": bundle}, "en")
    keys = tmp_path / "keys"
    keys.write_text("# two\nfirst-key\nsecond-key\n")
    variables = {"API_KEYS": "third", "MAX_ITEMS": "3", "CORS_ORIGIN": "https://page.example"}
    variables = {f"MIRROR_RT_SERVE_{name}": value for name, value in variables.items()}
    with running(pack, "--api-keys-file", keys, **variables) as server:
        key = {"Authorization": "Bearer second-key"}
        for model, lang, name in [
            (None, None, "mirror-en"), (None, "fr", "mirror-fr"), ("mirror", "fr-CA", "mirror-fr"),
            ("mirror-fr", None, "mirror-fr"), ("mirror-fr", "fr", "mirror-fr"),
        ]:  # fmt: skip
            body = {"input": "a", "model": model, "lang": lang}
            assert server.post("/v1/embeddings", body, key)[1]["model"] == name
        for model, lang, status in [("mirror-de", None, 404), (None, "de", 422),
                                    ("mirror-fr", "en", 422)]:  # fmt: skip
            body = {"input": "a", "model": model, "lang": lang}
            assert server.post("/v1/embeddings", body, key)[0] == status
        names = [model["id"] for model in server.get("/v1/models", key)[1]["data"]]
        assert names == ["mirror-fr", "mirror-en", "mirror"]
        assert server.post("/embed", {"inputs": ["a"] * 4}, key)[0] == 413  # the environment's

        for bad in (None, "Bearer first", "second-key", "Basic second-key", "Bearer ", "é"):
            headers = {} if bad is None else {"Authorization": bad}
            status, answer = server.post("/v1/embeddings", {"input": "a"}, headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert server.get("/metrics")[0] == 401
        assert b'route="/v1/embeddings",status="401"' in server.get("/metrics", key)[1]
        assert server.get("/health")[0] == 200
        for good in ("first-key", "third"):
            assert server.get("/info", {"Authorization": f"Bearer {good}"})[0] == 200

        keys.write_text("fourth-key\n")
        server.process.send_signal(signal.SIGHUP)
        fourth = {"Authorization": "Bearer fourth-key"}
        until(lambda: server.get("/info", fourth)[0] == 200)
        assert server.get("/info", key)[0] == 401

        connection = server.connect()
        origin = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        connection.request("OPTIONS", "/embed", headers=origin)
        response = connection.getresponse()
        assert response.getheader("access-control-allow-origin") == "https://page.example"
        connection.close()
    assert not [line for line in server.lines if "-key" in line and "keys" not in line]


@contextlib.contextmanager
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_lame_duck_is_not_ready_and_answers(workers, bundle, start_server):
    server = start_server(bundle, "--lame-duck", 600, "--workers", workers)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.get("/ready")[0] == 503)
    assert server.post("/embed", {"inputs": "a"})[0] == 200
    assert server.stop() == 0  # a second signal ends that time


def test_faults_before_the_port_opens(bundle_copy, tmp_path, cli, monkeypatch):
    monkeypatch.setattr("mirror_rt.server.monitoring.logs.configure_logging", lambda **_: None)
    pack = make_pack(tmp_path / "pack", {"fr": bundle_copy}, "fr")
    empty = tmp_path / "keys"
    empty.write_text("\n")

    def fails(code, message, *arguments):
        done = cli("serve", "--port", 0, *arguments)
        assert done.code == code
        assert message in done.err
        assert len(done.err.strip().splitlines()) == 1, done.err

    fails(2, "no model: name a bundle or a pack")
    fails(1, "no such folder, and no ready model of that name", tmp_path / "nowhere")
    fails(2, "is one bundle, not a pack", bundle_copy, "--lang", "fr")
    fails(2, "has no 'de'; it has fr", pack, "--lang", "de")
    fails(2, "the API keys of", bundle_copy, "--api-keys-file", tmp_path / "none")
    fails(2, "the API keys of", tmp_path / "nowhere", "--api-keys-file", tmp_path / "none")
    fails(2, "the API keys of", bundle_copy, "--api-keys-file", tmp_path)
    fails(2, "has no API key", bundle_copy, "--api-keys-file", empty)
    fails(2, "TLS needs both a certificate and its key: give --tls-certificate", bundle_copy,
          "--tls-key", empty)  # fmt: skip
    fails(2, "TLS: ", bundle_copy, "--tls-key", empty, "--tls-certificate", empty)
    fails(2, "--max-wait must be above 0", bundle_copy, "--max-wait", 0)
    fails(2, "is less than --max-items", bundle_copy, "--max-waiting-texts", 1)
    fails(2, "cannot listen at '256.1.1.1'", bundle_copy, "--host", "256.1.1.1")
    fails(1, "CUDA", bundle_copy, "--providers", "cuda")
    with taken_port() as port:
        fails(2, f"port {port}: it is taken", bundle_copy, "--port", port)
    monkeypatch.setenv("MIRROR_RT_SERVE_ON_TOO_LONG", "maybe")
    fails(2, "MIRROR_RT_SERVE_ON_TOO_LONG must be one of", bundle_copy)
    monkeypatch.setenv("MIRROR_RT_SERVE_ON_TOO_LONG", "truncate")
    with (bundle_copy / "tokenizer.json").open("a") as file:
        file.write(" ")
    fails(1, "is damaged: tokenizer.json", bundle_copy)
    (pack / "fr" / "tokenizer.json").unlink()
    fails(1, "tokenizer.json", pack)
