"""The Open Inference Protocol: its JSON, its binary tensors, and Triton's own client.

tests/run.sh installs tritonclient and what it needs into build/tritonclient, away from all others.
"""

import importlib
import json
import struct
import sys

import numpy as np
import pytest

from asgi_calls import Call, run
from paths import ROOT
from rounding import ANY_BATCH
from tiny_models import SENTENCES

PATH = "/v2/models/tiny/infer"
LENGTH = "inference-header-content-length"


@pytest.fixture(scope="module")
def app(application, encoder):
    with application(encoder, "other", max_items=100) as app:
        yield app


def ask(app, body=None, path=PATH, headers=()):
    """Return the status, the headers and the bytes of an answer."""

    async def main():
        call = Call(app, path, body, headers=headers)
        await call.task
        return call.status, call.headers, b"".join(call._parts)

    return run(main())


def tensor(texts, **more):
    return {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts} | more


def packed(texts):
    rows = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(row)) + row for row in rows)


def ask_packed(app, raw, shape, *, size=None, length=None, **more):
    parameters = {"binary_data_size": len(raw) if size is None else size}
    given = {"name": "text", "datatype": "BYTES", "shape": shape, "parameters": parameters}
    head = json.dumps({"inputs": [given]} | more).encode()
    headers = {LENGTH: str(len(head)) if length is None else length}
    return ask(app, head + raw, headers=headers)


def test_health_and_metadata(app, encoder):
    assert json.loads(ask(app, path="/v2/health/live")[2]) == {"live": True}
    assert json.loads(ask(app, path="/v2/health/ready")[2]) == {"ready": True}
    assert "binary_tensor_data" in json.loads(ask(app, path="/v2")[2])["extensions"]
    for name in ("tiny", "other"):
        found = json.loads(ask(app, path=f"/v2/models/{name}")[2])
        assert found["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]
        assert found["outputs"][0]["shape"] == [-1, encoder.dimension]
        answer = json.loads(ask(app, path=f"/v2/models/{name}/ready")[2])
        assert answer == {"name": name, "ready": True}
        config = json.loads(ask(app, path=f"/v2/models/{name}/versions/1/config")[2])
        assert config["output"][0]["dims"] == [encoder.dimension]
        assert config["max_batch_size"] == 100
    for body in (b"", {}, {"ready": True}):
        found = json.loads(ask(app, body, path="/v2/repository/index")[2])
        assert found == [{"name": "tiny", "version": "1", "state": "READY", "reason": ""}]
    assert ask(app, {"no": 1}, path="/v2/repository/index")[0] == 422
    for path in ("/v2/models/no", "/v2/models/no/ready", "/v2/models/no/stats", "/v2/no"):
        status, _, body = ask(app, path=path)
        assert (status, list(json.loads(body))) == (404, ["error"])
    assert ask(app, path=PATH)[0] == 405
    literal = ask(app, {"inputs": [tensor(["a"])]}, path="/v2/models/{name}/infer")
    assert literal[0] == 404


def test_statistics(app):
    def of_all():
        return json.loads(ask(app, path="/v2/models/stats")[2])["model_stats"]

    (before,) = of_all()
    assert ask(app, {"inputs": [tensor(["what is counted", "and timed"])]})[0] == 200
    (after,) = of_all()
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["execution_count"] > before["execution_count"]
    times = [one["inference_stats"]["compute_infer"]["ns"] for one in (before, after)]
    assert times[0] < times[1]
    assert json.loads(ask(app, path="/v2/models/other/stats")[2])["model_stats"] == [after]


@pytest.mark.parametrize("texts", [SENTENCES, SENTENCES * 10], ids=["whole", "in pieces"])
def test_json_and_bytes_give_what_encode_gives(app, encoder, texts):
    texts = texts[:100]
    expected = encoder.encode(texts)
    nested = tensor([[text] for text in texts], shape=[len(texts), 1])
    for given in (tensor(texts), nested):
        status, _, body = ask(app, {"id": "7", "inputs": [given]})
        answer = json.loads(body)
        (output,) = answer["outputs"]
        assert (status, answer["model_name"], answer["id"]) == (200, "tiny", "7")
        assert (output["name"], output["datatype"]) == ("embedding", "FP32")
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        np.testing.assert_allclose(found, expected, atol=ANY_BATCH)
    asked = [{"name": "embedding", "parameters": {"binary_data": True}}]
    for more in ({"outputs": asked}, {"parameters": {"binary_data_output": True}}):
        status, headers, body = ask_packed(app, packed(texts), [len(texts), 1], **more)
        head = int(headers[LENGTH.encode()])
        (output,) = json.loads(body[:head])["outputs"]
        assert (status, output["shape"]) == (200, list(expected.shape))
        assert output["parameters"] == {"binary_data_size": len(body) - head}
        found = np.frombuffer(body[head:], "<f4").reshape(expected.shape)
        np.testing.assert_allclose(found, expected, atol=ANY_BATCH)


def test_parameters(app, encoder):
    parameters = {"dimensions": 4, "normalize": False, "prompt": "query: "}
    _, _, body = ask(app, {"inputs": [tensor(["a text"])], "parameters": parameters})
    expected = encoder.encode(
        ["a text"], truncate_dim=4, normalize_embeddings=False, prompt="query: "
    )
    data = json.loads(body)["outputs"][0]["data"]
    np.testing.assert_allclose([data], expected, atol=ANY_BATCH)


@pytest.mark.parametrize(
    "sent",
    [
        {"model_name": "tiny", "id": "an id"},  # KServe's client sends both
        {"parameters": {"priority": 3, "timeout": 30_000_000}},
        {"parameters": {"sequence_id": 7, "sequence_start": True, "sequence_end": False}},
        {"parameters": {"sequence_id": "a name"}},
        {"outputs": [{"name": "embedding", "parameters": {"classification": 0}}]},
    ],
)
def test_what_clients_of_the_protocol_send_is_taken(app, encoder, sent):
    status, _, body = ask(app, {"inputs": [tensor(["a text"])]} | sent)
    assert status == 200
    data = json.loads(body)["outputs"][0]["data"]
    np.testing.assert_allclose(data, encoder.encode("a text"), atol=ANY_BATCH)


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"inputs": [tensor(["a"])], "parameters": {"timeout": 1}}, 408, "within the time given"),
        (
            {
                "inputs": [tensor(["a"])],
                "outputs": [{"name": "embedding", "parameters": {"classification": 3}}],
            },
            422,
            "classification",
        ),
        (
            {
                "inputs": [tensor(["a"])],
                "outputs": [{"name": "embedding", "parameters": {"shared_memory_region": "r"}}],
            },
            422,
            "shared_memory_region",
        ),
        ({}, 422, "inputs"),
        ({"inputs": []}, 422, "inputs"),
        ({"inputs": [tensor(["a"]), tensor(["b"])]}, 422, "inputs"),
        ({"inputs": [tensor(["a"])], "dimensions": 4}, 422, "dimensions"),
        ({"inputs": [tensor(["a"])], "parameters": {"no": 1}}, 422, "no"),
        ({"inputs": [tensor(["a"], name="words")]}, 422, "words"),
        ({"inputs": [tensor(["a"], datatype="INT64")]}, 422, "INT64"),
        ({"inputs": [tensor(["a"], shape=[2])]}, 422, "1 texts, and the shape is"),
        ({"inputs": [tensor(["a"], shape=[1, 2])]}, 422, "expected the shape"),
        ({"inputs": [tensor(["a"], data=None)]}, 422, "expected either data or"),
        ({"inputs": [tensor(["a"])], "outputs": [{"name": "no"}]}, 422, "no"),
        ({"inputs": [tensor([])]}, 400, "it is empty"),
        ({"inputs": [tensor(["a", " "])]}, 400, "item 1 is only white space"),
        ({"inputs": [tensor(["a"] * 101)]}, 413, "at most 100"),
        ({"inputs": [tensor(["a " * 600_000])]}, 413, "as binary data"),
        ({"inputs": [tensor(["a", "river " * 600])]}, 413, "item 1: it is longer than"),
        (b'{"inputs": [{"data": ["\\ud800"]}]}', 400, "surrogate"),
        (b"{", 400, "not valid JSON"),
    ],
)
def test_bad_requests(app, body, status, named):
    found, _, answer = ask(app, body)
    assert (found, list(json.loads(answer))) == (status, ["error"])
    assert named in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("raw", "shape", "more", "status", "named"),
    [
        (packed(["a", "b"]), [1], {}, 422, "5 bytes follow the 1 items"),
        (packed(["a"]), [2], {}, 422, "item 1 goes beyond"),
        (struct.pack("<I", 2**32 - 1) + b"a", [1], {}, 422, "item 0 goes beyond"),
        (packed(["a", b"\xff"]), [2], {}, 422, "item 1 is not valid UTF-8"),
        (packed(["a"]), [1], {"size": 4}, 422, "5 bytes follow the JSON"),
        (packed(["a"]), [1 << 30], {}, 413, "at most 100"),
        (packed(["a"]), [1], {"length": "100000"}, 400, "expected a number of at most"),
        (packed(["a"]), [1], {"length": "-1"}, 400, "expected a number of at most"),
        (packed(["a"]), [1], {"length": "0"}, 400, "not valid JSON"),
    ],
)
def test_tensors_that_contradict_themselves(app, raw, shape, more, status, named):
    found, _, answer = ask_packed(app, raw, shape, **more)
    assert found == status
    assert named in json.loads(answer)["error"]


@pytest.fixture
def triton(open_server, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "build/tritonclient"))
    http = importlib.import_module("tritonclient.http")
    address = f"127.0.0.1:{open_server.port}"
    with http.InferenceServerClient(address, concurrency=8) as client:
        yield http, client


@pytest.mark.full
def test_tritons_client(triton, encoder):
    """One bad item fails its own request, while its neighbours get their vectors."""
    http, client = triton
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert not client.is_model_ready("no")
    assert client.get_model_metadata("tiny")["inputs"][0]["datatype"] == "BYTES"
    assert client.get_model_config("tiny", "1")["input"][0]["data_type"] == "TYPE_STRING"
    (model,) = client.get_model_repository_index()  # "tiny" is an alias
    for named in ({}, {"model_name": "tiny"}):
        (counted,) = client.get_inference_statistics(**named)["model_stats"]
        assert (counted["name"], counted["version"]) == (model["name"], "1")

    def given(texts, *, binary):
        rows = np.array([[text.encode()] for text in texts], dtype=object)
        tensor = http.InferInput("text", rows.shape, "BYTES")
        tensor.set_data_from_numpy(rows, binary_data=binary)
        return [tensor]

    expected = encoder.encode(SENTENCES)
    answer = client.infer("tiny", given(SENTENCES, binary=True), sequence_id=3, priority=1,
                          timeout=60_000_000)  # fmt: skip
    np.testing.assert_allclose(answer.as_numpy("embedding"), expected, atol=ANY_BATCH)
    for binary in (True, False):
        wanted = [http.InferRequestedOutput("embedding", binary_data=binary)]
        for outputs in (wanted, None):
            answer = client.infer("tiny", given(SENTENCES, binary=binary), outputs=outputs)
            np.testing.assert_allclose(answer.as_numpy("embedding"), expected, atol=ANY_BATCH)
    texts = [[text] for text in SENTENCES]
    texts[3] = ["good", "river " * 600]
    waiting = [client.async_infer("tiny", given(one, binary=True)) for one in texts]
    for i, (one, answer) in enumerate(zip(texts, waiting, strict=True)):
        if i == 3:
            with pytest.raises(sys.modules["tritonclient.utils"].InferenceServerException) as found:
                answer.get_result()
            assert "item 1: it is longer than" in found.value.message()
        else:
            np.testing.assert_allclose(
                answer.get_result().as_numpy("embedding"), encoder.encode(one), atol=ANY_BATCH
            )
