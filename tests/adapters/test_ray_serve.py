"""Ray Serve: the paths of the server from its replicas, which load the model themselves."""

import json
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("ray.serve")

import ray
from ray import serve

from mirror_rt.server import ServerConfig
from mirror_rt.server.ray_serve import ray_application
from rounding import ANY_BATCH


@pytest.fixture
def address(model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = ServerConfig(model_name="tiny")
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}}
    serve.run(ray_application(model, config, **options), route_prefix="/here")
    yield f"http://127.0.0.1:{port}/here"
    serve.shutdown()
    ray.shutdown()


def ask(address, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"{address}{path}", data, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_many_requests_and_a_bad_one(address, encoder, documents):
    """All are answered as by `mirror-rt serve`, and the bad one with its error."""
    expected = encoder.encode(documents, normalize_embeddings=True)
    asked = [[text] for text in documents] * 20
    asked[7] = ["good", " "]
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda texts: ask(address, "/embed", {"inputs": texts}), asked))
    assert answers[7] == (
        400,
        {"error": "inputs: item 1 is only white space", "error_type": "Empty"},
    )
    for i, (status, vectors) in enumerate(answers):
        if i != 7:
            assert status == 200
            np.testing.assert_allclose(vectors[0], expected[i % len(documents)], atol=ANY_BATCH)
    assert ask(address, "/v2/models/tiny/ready") == (200, {"name": "tiny", "ready": True})
    replicas = {ask(address, "/status")[1]["process"] for _ in range(40)}
    assert len(replicas) == 2
